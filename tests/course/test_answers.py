"""A lesson comes back as published, the learner's cells stay, and solutions can be shown."""

from __future__ import annotations

import subprocess

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from typer.testing import CliRunner

from gptoss_lab.cli import app
from gptoss_lab.course import answers, notebooks
from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.twins import STUB

SIGNATURE = "def twice(value: int) -> int:\n"
SOLVED = "import math\n\n\ndef helper(x):\n    return 2 * x\n\n\n" + SIGNATURE + "    return helper(value)"
NAME = "10__twice.ipynb"


def lesson(exercise: str) -> nbformat.NotebookNode:
    cells = [new_markdown_cell("# Twice"), new_code_cell("from somewhere import check")]
    metadata = {"tags": ["exercise"], "gptoss_lab": {"exercise": "10.1"}}
    cells += [new_code_cell(exercise, metadata=metadata), new_code_cell("check.twice(twice)")]
    for number, cell in enumerate(cells):
        cell.id = f"c{number}"
        if cell.cell_type == "code":
            cell.outputs = [new_output("stream", name="stdout", text=f"said by cell {number}\n")]
    return new_notebook(cells=cells)


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one lesson with its twin, outside git and apart from the real course."""
    folder = tmp_path / "course" / "notebooks"
    notebooks.write(folder / NAME, lesson(SIGNATURE + f"    {STUB}"))
    notebooks.write(folder / notebooks.SOLUTIONS / NAME, lesson(SOLVED))
    monkeypatch.setattr(answers, "ROOT", tmp_path / "course")
    monkeypatch.chdir(tmp_path / "course")
    return folder


def git(folder, *arguments):
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def commit(folder):
    git(folder, "add", ".")
    git(folder, "commit", "-m", "x")


@pytest.fixture
def checkout(course):
    git(course.parent, "init")
    commit(course)
    return course


def test_a_lesson_comes_back_byte_for_byte_and_the_answer_is_kept(checkout):
    path = checkout / NAME
    published = path.read_bytes()
    notebooks.write(path, lesson(SIGNATURE + "    return 3"))
    mine = path.read_bytes()
    done = answers.reset(path)
    assert path.read_bytes() == published and done.origin.startswith("git, commit ")
    assert done.kept == checkout / "10__twice.mine-1.ipynb" and done.kept.read_bytes() == mine
    assert notebooks.find_lessons(checkout) == [path]


def test_each_reset_keeps_a_file_of_its_own_and_none_where_nothing_differs(checkout):
    path = checkout / NAME
    assert answers.reset(path).kept is None
    for number in (1, 2):
        notebooks.write(path, lesson(SIGNATURE + f"    return {number}"))
        assert answers.reset(path).kept.name == f"10__twice.mine-{number}.ipynb"
    assert "return 1" in (checkout / "10__twice.mine-1.ipynb").read_text()
    assert not list(checkout.glob("*.part"))


def test_an_answer_that_was_committed_is_not_taken_for_the_lesson(checkout):
    published = (checkout / NAME).read_bytes()
    notebooks.write(checkout / NAME, lesson(SIGNATURE + "    return 3"))
    commit(checkout)
    answers.reset(checkout / NAME)
    assert (checkout / NAME).read_bytes() == published


def test_the_newest_published_version_counts(checkout):
    newer = lesson(SIGNATURE + f"    {STUB}")
    newer.cells[1].source += "  # newer"
    notebooks.write(checkout / NAME, newer)
    commit(checkout)
    notebooks.write(checkout / NAME, lesson(SIGNATURE + "    return 3"))
    answers.reset(checkout / NAME)
    assert "# newer" in (checkout / NAME).read_text()


def test_outside_git_the_lesson_is_made_from_its_twin(course):
    path = course / NAME
    expected = notebooks.read(path)
    notebooks.write(path, lesson(SIGNATURE + "    return 3"))
    assert "solved twin" in answers.reset(path).origin
    cells = notebooks.read(path).cells
    assert cells[2].source == "import math\n\n\n" + SIGNATURE + f"    {STUB}"
    # What the solution and its check printed is gone, and so is nothing else.
    assert [len(cell.get("outputs", [])) for cell in cells] == [0, 1, 0, 0]
    assert [cell.source for i, cell in enumerate(cells) if i != 2] == [
        cell.source for i, cell in enumerate(expected.cells) if i != 2
    ]


def test_a_damaged_or_deleted_lesson_comes_back_too(checkout):
    path = checkout / NAME
    published = path.read_bytes()
    path.write_text("{")
    assert answers.reset(path).kept.read_text() == "{"
    path.unlink()
    assert answers.reset(path).kept is None
    assert path.read_bytes() == published


def test_with_neither_git_nor_twin_it_says_what_to_do(course):
    (course / notebooks.SOLUTIONS / NAME).unlink()
    with pytest.raises(notebooks.NotebookError, match="clone the course again"):
        answers.reset(course / NAME)


def test_a_hook_of_git_does_not_name_another_repository(checkout, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert answers.published(checkout / NAME).origin.startswith("git")


@pytest.mark.parametrize(
    ("solution", "name", "expected"),
    [
        ("def f(a,\n      b):\n    'doc'\n    return a", "f", f"def f(a,\n      b):\n    {STUB}"),
        ("def f(a):\n    # the answer\n\n    return a", "f", f"def f(a):\n    {STUB}"),
        ("def f(a): return a", "f", f"def f(*args, **kwargs):\n    {STUB}"),
        ("f = max", "f", f"def f(*args, **kwargs):\n    {STUB}"),
        ("f = max", "", f"def answer(*args, **kwargs):\n    {STUB}"),
    ],
)
def test_a_stub_keeps_the_signature_and_nothing_of_the_answer(solution, name, expected):
    assert answers.stub(solution, name) == expected


def test_every_lesson_of_the_course_can_be_made_from_its_twin():
    """The signatures that come out are those that the lessons ask for."""
    lessons = notebooks.find_lessons(ROOT / "notebooks")
    for path in lessons:
        made, asked = answers.unsolve(notebooks.read(notebooks.twin_of(path))), notebooks.read(path)
        for ours, theirs in zip(made.cells, asked.cells, strict=True):
            if notebooks.exercise_id(theirs) is None:
                assert ours.source == theirs.source
            else:
                assert ours.source.endswith(theirs.source[theirs.source.index("def ") :]), path.name


# --- the commands


def test_the_reset_command_names_the_file_that_it_kept(checkout):
    notebooks.write(checkout / NAME, lesson(SIGNATURE + "    return 3"))
    said = CliRunner().invoke(app, ["reset", "10"])
    assert said.exit_code == 0 and "10__twice.mine-1.ipynb" in said.stdout and "Reload" in said.stdout
    again = CliRunner().invoke(app, ["reset", "10"])
    assert "nothing had to be kept" in again.stdout


def test_reset_wants_one_lesson_that_exists(checkout):
    assert CliRunner().invoke(app, ["reset"]).exit_code == 2
    before = (checkout / NAME).read_bytes()
    for name in ("11", ""):
        assert CliRunner().invoke(app, ["reset", name]).exit_code == 2
    assert (checkout / NAME).read_bytes() == before


def test_reset_never_touches_the_twin(checkout):
    twin = notebooks.twin_of(checkout / NAME)
    before = twin.read_bytes()
    assert CliRunner().invoke(app, ["reset", str(twin)]).exit_code == 0
    assert twin.read_bytes() == before


def test_a_solution_is_shown_as_code_and_an_unknown_one_is_named(course):
    said = CliRunner().invoke(app, ["solution", "10.1"])
    assert said.exit_code == 0 and said.stdout == SOLVED + "\n"
    unknown = CliRunner().invoke(app, ["solution", "10.9"])
    assert unknown.exit_code == 2 and "choose from 10.1" in unknown.stderr
