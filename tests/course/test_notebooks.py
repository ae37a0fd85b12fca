"""The format of a notebook's file, the form of a lesson, and a lesson beside its solved twin."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from typer.testing import CliRunner

from gptoss_lab.cli import app
from gptoss_lab.course import gate, lint, notebooks, twins
from gptoss_lab.course.lessons import quiz_10

OPENING = """# Count the bytes

**You will do:** one sum.

**You will learn to**
- add.

**You need:** nothing.

**Time:** 5 minutes of reading, 10 of exercises."""
DETAILS = "<details><summary>Answer</summary>Yes.</details>"
END = f"## What you can do now\n\n- Add.\n\n{DETAILS}\n{DETAILS}\n{DETAILS}\n\n**Further reading**\n\n- none"
STUB = "def add(a, b):\n    raise NotImplementedError"
SOLVED = "def add(a, b):\n    return a + b"


def exercise(source: str, name: str = "10.1") -> NotebookNode:
    return new_code_cell(source, metadata={"tags": ["exercise"], "gptoss_lab": {"exercise": name}})


def build(answer: str) -> NotebookNode:
    """A lesson with nothing to find fault with, and one exercise that `answer` fills in."""
    cells = [
        new_markdown_cell(OPENING),
        new_code_cell("import math", metadata={"tags": ["nbval-ignore-output"]}),
        new_markdown_cell("## The sum\n\n![two apples](picture.png)\n\n```\n# no title\n![](nothing.png)\n```"),
        exercise(answer),
        new_code_cell("check(add)"),
        new_code_cell("print('3 bytes')", metadata={"tags": ["summary"]}),
        new_markdown_cell(END),
    ]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    notebook = nbformat.from_dict({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    return notebooks.canonical(notebook)


@pytest.fixture
def lesson(tmp_path: Path) -> Path:
    """A lesson and its solved twin, both as they should be."""
    path = tmp_path / "notebooks" / "10__count_bytes.ipynb"
    notebooks.write(path, build(STUB))
    notebooks.write(notebooks.twin_of(path), build(SOLVED))
    (path.parent / "picture.png").write_bytes(b"")
    return path


def change(path: Path, edit: Callable[[NotebookNode], object]) -> None:
    """Apply `edit` to the notebook at `path` and write it as any tool might, not in the course's format."""
    notebook = notebooks.read(path)
    edit(notebook)
    path.write_text(nbformat.v4.writes(notebook) + "\n", encoding="utf-8")


# --- format


def test_lesson_without_fault_passes(lesson: Path) -> None:
    assert lint.course_problems([lesson]) == [] and lint.advice(lesson) == []


def put(key: str, value: object) -> Callable[[NotebookNode], None]:
    return lambda notebook: notebook.__setitem__(key, nbformat.from_dict(value))


FORMAT = {
    "version": (put("nbformat_minor", 4), "nbformat 4.4, not 4.5"),
    "kernelspec of another machine": (
        lambda notebook: notebook.metadata.kernelspec.update(name="gpu-box"),
        "metadata 'kernelspec' is not the course's",
    ),
    "language info": (
        lambda notebook: notebook.metadata.language_info.update(version="3.11.7"),
        "metadata 'language_info' is not the course's",
    ),
    "widget state": (
        lambda notebook: notebook.metadata.update(widgets={}),
        "metadata 'widgets' is not the course's",
    ),
    "no id": (lambda notebook: notebook.cells[2].pop("id"), "cell 2: no id"),
    "id twice": (lambda notebook: notebook.cells[2].update(id="cell-1"), "cell 2: id 'cell-1' used twice"),
    "timings": (
        lambda notebook: notebook.cells[1].metadata.update(execution={}),
        "cell 1: metadata execution",
    ),
    "empty cell": (lambda notebook: notebook.cells.insert(2, new_code_cell("  \n")), "cell 2: empty"),
    "blank end": (lambda notebook: notebook.cells[2].update(source="x\n\n"), "not in the canonical form"),
}


@pytest.mark.parametrize("name", FORMAT)
def test_format_fault_is_named_and_mended(lesson: Path, name: str) -> None:
    edit, said = FORMAT[name]
    change(lesson, edit)
    problems = notebooks.format_problems(lesson)
    assert any(said in problem and "gptoss-lab fix" in problem for problem in problems), problems
    assert notebooks.fix(lesson) and notebooks.format_problems(lesson) == []
    assert not notebooks.fix(lesson)


@pytest.mark.parametrize("spoil", [lambda text: text[:-1], lambda text: json.dumps(json.loads(text), indent=2) + "\n"])
def test_format_is_held_to_the_byte(lesson: Path, spoil: Callable[[str], str]) -> None:
    text = lesson.read_text(encoding="utf-8")
    lesson.write_text(spoil(text), encoding="utf-8")
    assert notebooks.format_problems(lesson) == ["not in the canonical form: run gptoss-lab fix"]
    notebooks.fix(lesson)
    assert lesson.read_text(encoding="utf-8") == text and text.endswith("}\n")


def test_ids_that_are_made_up_are_distinct_and_the_same_each_time(lesson: Path) -> None:
    def strip(notebook: NotebookNode) -> None:
        for cell in notebook.cells:
            cell.pop("id")
        notebook.cells.append(copy.deepcopy(notebook.cells[-1]))

    change(lesson, strip)
    texts = {notebooks.dumps(notebooks.read(lesson)) for _ in range(2)}
    assert len(texts) == 1
    ids = [cell["id"] for cell in json.loads(texts.pop())["cells"]]
    assert len(set(ids)) == len(ids) == 8


def test_canonical_keeps_outputs_and_what_the_course_needs(lesson: Path) -> None:
    notebook = notebooks.read(lesson)
    notebook.cells[3].outputs = [new_output("stream", text="3\n")]
    notebook.cells[3].execution_count = 2
    kept = notebooks.canonical(notebook).cells[3]
    assert kept.outputs[0].text == "3\n" and kept.execution_count == 2
    assert kept.metadata == {"tags": ["exercise"], "gptoss_lab": {"exercise": "10.1"}}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nbformat": 3, "worksheets": []}', '{"nbformat": 4, "cells": [{}]}'])
def test_file_that_is_no_notebook_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "10__x.ipynb"
    path.write_text(text)
    with pytest.raises(notebooks.NotebookError, match="10__x.ipynb"):
        notebooks.read(path)


def test_failed_write_leaves_the_file_as_it_was(lesson: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lesson.read_bytes()
    with pytest.raises(UnicodeEncodeError):
        notebooks.write_beside(lesson, "half \ud800")
    assert lesson.read_bytes() == before
    assert sorted(path.name for path in lesson.parent.iterdir()) == [
        "10__count_bytes.ipynb",
        "picture.png",
        "solutions",
    ]


def test_write_replaces_the_file_and_never_writes_into_it(lesson: Path) -> None:
    """A second name of the old file keeps the old text: whoever reads it meanwhile sees it whole."""
    before = lesson.read_bytes()
    (lesson.parent / "old").hardlink_to(lesson)
    notebooks.write_beside(lesson, "new")
    assert lesson.read_text() == "new" and (lesson.parent / "old").read_bytes() == before


# --- choosing


@pytest.mark.parametrize("name", ["10", "10__count_bytes", "10__count_bytes.ipynb"])
def test_lesson_is_chosen_by_number_and_name(lesson: Path, name: str) -> None:
    notebooks.write(lesson.with_name("12__other.ipynb"), build(STUB))
    assert notebooks.choose([name], lesson.parent) == [lesson]
    assert len(notebooks.choose([], lesson.parent)) == 2


def test_twin_is_chosen_by_path_and_stands_for_its_lesson(lesson: Path) -> None:
    twin = notebooks.twin_of(lesson)
    assert notebooks.choose([str(twin)], lesson.parent) == [twin]
    assert notebooks.choose_lessons([str(twin), str(lesson)], lesson.parent) == [lesson]
    assert notebooks.with_twins([lesson]) == [lesson, twin]


# --- form of a lesson


def source(number: int, new: str) -> Callable[[NotebookNode], None]:
    return lambda notebook: notebook.cells[number].update(source=new)


def opening(old: str, new: str) -> Callable[[NotebookNode], None]:
    return source(0, OPENING.replace(old, new))


def shown(**data: str) -> Callable[[NotebookNode], None]:
    bundle = {name.replace("_", "/"): value for name, value in data.items()}
    return lambda notebook: notebook.cells[4].outputs.append(new_output("display_data", bundle))


def more(count: int) -> Callable[[NotebookNode], None]:
    return lambda notebook: notebook.cells.extend(new_code_cell(f"x = {n}") for n in range(count))


def quiz(name: str, before: bool = False) -> Callable[[NotebookNode], None]:
    """The questions in a cell of their own, between the recap and what to read."""
    recap, reading = END.split(f"{DETAILS}\n{DETAILS}\n{DETAILS}\n\n")

    def edit(notebook: NotebookNode) -> None:
        cells = [new_markdown_cell(recap + "**Check yourself**"), new_code_cell(f"{name}.questions()")]
        notebook.cells[6:] = [*(reversed(cells) if before else cells), new_markdown_cell(reading)]

    return edit


FORM = {
    "number in the title": (opening("# Count", "# 10 Count"), "repeats a number"),
    "lesson in the title": (opening("# Count", "# Lesson 10: count"), "repeats a number"),
    "second title": (source(2, "# Another"), "2 headings of level one"),
    "no title": (opening("# Count", "## Count"), "0 headings of level one"),
    "title late": (opening("# Count", "Hello\n\n# Count"), "starts with its title"),
    "nothing to do": (opening("You will do", "Do"), "no **You will do**"),
    "nothing to learn": (opening("**You will learn to**", "You will learn"), "no **You will learn**"),
    "nothing needed": (opening("**You need:** nothing.", ""), "no **You need**"),
    "no time": (opening("**Time:**", "Time:"), "no minutes"),
    "time without minutes": (opening("5 minutes", "Some minutes"), "no minutes"),
    "too many cells": (more(25), "29 code cells: 28 at most"),
    "long cell": (source(4, "x = 1\n" * 20 + "x"), "cell 4: 21 lines: 20 at most"),
    "misspelt tag": (
        lambda notebook: notebook.cells[4].metadata.update(tags=["raise-exception"]),
        "unknown tag",
    ),
    "setup compared": (lambda notebook: notebook.cells[1].metadata.update(tags=[]), "cell 1: the setup cell"),
    "no summary": (lambda notebook: notebook.cells[5].metadata.update(tags=[]), "0 cells tagged summary"),
    "long summary": (
        lambda notebook: notebook.cells[5].update(outputs=[new_output("stream", text="1\n2\n3\n")], execution_count=4),
        "summary prints 3 lines",
    ),
    "exercise of another lesson": (
        lambda notebook: notebook.cells[3].metadata.gptoss_lab.update(exercise="12.1"),
        "exercise id '12.1': write 10.1",
    ),
    "exercise without id": (lambda notebook: notebook.cells[3].metadata.pop("gptoss_lab"), "exercise id ''"),
    "id without exercise": (
        lambda notebook: notebook.cells[3].metadata.pop("tags"),
        "has an exercise id and no",
    ),
    "exercise twice": (
        lambda notebook: notebook.cells.insert(5, exercise(STUB)),
        "exercise id '10.1' used twice",
    ),
    "exercise without checker": (
        lambda notebook: notebook.cells.pop(4) and notebook.cells.pop(4),
        "calls its checker",
    ),
    "picture without alt": (source(2, "![](picture.png)"), "cell 2: a picture without alt text"),
    "img without alt": (source(2, '<img src="picture.png">'), "cell 2: an <img> without alt text"),
    "img with empty alt": (shown(text_html='<img alt="" src="data:,">'), "cell 4: an <img> without alt text"),
    "bare figure": (shown(image_png="AAAA", text_plain="<Figure>"), "cell 4: a figure without alt text"),
    "dead link": (source(2, "[next](12__gone.ipynb#part)"), "links to 12__gone.ipynb, which is not there"),
    "no recap": (
        source(6, END.replace("## What you can do now", "## The end")),
        "no heading 'What you can do now'",
    ),
    "two questions": (source(6, END.replace(DETAILS, "", 1)), "fewer than three questions"),
    "quiz that is not there": (quiz("quiz_99"), "quiz_99.questions() is called, and"),
    "quiz before the recap": (quiz("quiz_10", before=True), "fewer than three questions"),
    "quiz in a comment": (quiz("# quiz_10"), "fewer than three questions"),
    "no further reading": (source(6, END.replace("Further reading", "Links")), "no 'Further reading'"),
}


@pytest.mark.parametrize("name", FORM)
def test_fault_of_form_is_named(lesson: Path, name: str) -> None:
    edit, said = FORM[name]
    change(lesson, edit)
    problems = lint.lesson_problems(lesson)
    assert any(said in problem for problem in problems), problems


def test_quiz_of_three_takes_the_place_of_answers_in_prose(lesson: Path) -> None:
    change(lesson, quiz("quiz_10"))
    assert lint.lesson_problems(lesson) == []


def test_quiz_of_two_is_short_of_one(lesson: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = quiz_10.questions()
    asked.questions.pop()
    monkeypatch.setattr(quiz_10, "questions", lambda: asked)
    change(lesson, quiz("quiz_10"))
    assert len(lint.lesson_problems(lesson)) == 1 and "fewer than three" in lint.lesson_problems(lesson)[0]


@pytest.mark.parametrize("name", ["count_bytes", "1__count", "10_count", "10__Count", "10__count bytes", "10__"])
def test_file_name_is_number_and_snake_case(lesson: Path, name: str) -> None:
    renamed = lesson.rename(lesson.with_name(f"{name}.ipynb"))
    assert any("file name" in problem for problem in lint.lesson_problems(renamed))


def test_sizes_over_the_aim_are_noted_and_no_fault(lesson: Path) -> None:
    change(lesson, more(24))
    change(lesson, source(4, "x = 1\n" * 15 + "x"))
    assert lint.advice(lesson) == ["28 code cells: aim for 25", "cell 4: 16 lines: aim for 15"]
    assert lint.lesson_problems(lesson) == []


def test_lesson_zero_counts_its_exercises_from_0_1(lesson: Path) -> None:
    renamed = lesson.rename(lesson.with_name("00__count_bytes.ipynb"))
    change(renamed, lambda notebook: notebook.cells[3].metadata.gptoss_lab.update(exercise="0.1"))
    assert lint.lesson_problems(renamed) == []


def test_title_and_minutes_are_read(lesson: Path) -> None:
    notebook = notebooks.read(lesson)
    assert lint.title(notebook) == "Count the bytes"
    assert lint.minutes(notebook) == {"reading": 5, "exercises": 10}


# --- lesson and twin

DRIFT = {
    "source": source(4, "check(add, 2)"),
    "prose": source(2, "## Another sum"),
    "tag": lambda notebook: notebook.cells[4].metadata.update(tags=["raises-exception"]),
    "kind": lambda notebook: notebook.cells.__setitem__(2, new_code_cell(notebook.cells[2].source)),
    "one more": lambda notebook: notebook.cells.append(new_markdown_cell("Bye.")),
    "one less": lambda notebook: notebook.cells.pop(),
    "order": lambda notebook: notebook.cells.reverse(),
    "exercise id": lambda notebook: notebook.cells[3].metadata.gptoss_lab.update(exercise="10.2"),
    "no exercise": lambda notebook: notebook.cells[3].metadata.clear(),
}


@pytest.mark.parametrize("name", DRIFT)
@pytest.mark.parametrize("solved", [False, True], ids=["lesson", "twin"])
def test_drift_between_lesson_and_twin_is_found(lesson: Path, name: str, solved: bool) -> None:
    change(notebooks.twin_of(lesson) if solved else lesson, DRIFT[name])
    assert any("the solved twin" in problem for problem in twins.pair_problems(lesson))


def test_solution_may_differ_and_must_be_one(lesson: Path) -> None:
    change(notebooks.twin_of(lesson), source(3, "import operator\n\nadd = operator.add"))
    assert twins.pair_problems(lesson) == []
    change(notebooks.twin_of(lesson), source(3, STUB))
    assert twins.pair_problems(lesson) == ["exercise 10.1 is not solved in the twin"]


def test_lesson_must_not_hold_the_solution(lesson: Path) -> None:
    change(lesson, source(3, SOLVED))
    assert "exercise 10.1 holds no `raise NotImplementedError`" in twins.pair_problems(lesson)[0]


def test_missing_and_left_over_twins_are_faults(lesson: Path) -> None:
    twin = notebooks.twin_of(lesson)
    twin.rename(twin.with_name("12__gone.ipynb"))
    assert "no solved twin" in twins.pair_problems(lesson)[0]
    assert twins.orphans(lesson.parent) == [
        f"{twin.with_name('12__gone.ipynb')}: no lesson {lesson.parent / '12__gone.ipynb'}"
    ]


@pytest.mark.parametrize("name", sorted(set(DRIFT) - {"exercise id", "no exercise"}))
def test_sync_brings_the_twin_into_step(lesson: Path, name: str) -> None:
    change(lesson, DRIFT[name])
    assert twins.sync(lesson) == []
    assert twins.pair_problems(lesson) == []
    assert SOLVED in [cell.source for cell in notebooks.read(notebooks.twin_of(lesson)).cells]


def test_sync_keeps_outputs_of_cells_that_stay(lesson: Path) -> None:
    def record(notebook: NotebookNode) -> None:
        for number in (3, 4, 5):
            notebook.cells[number].update(execution_count=number, outputs=[new_output("stream", text=f"{number}\n")])

    change(notebooks.twin_of(lesson), record)
    change(lesson, source(5, "print('4 bytes')"))
    twins.sync(lesson)
    cells = notebooks.read(notebooks.twin_of(lesson)).cells
    assert [cell.execution_count for cell in cells[3:6]] == [3, 4, None]
    assert [len(cell.outputs) for cell in cells[3:6]] == [1, 1, 0]


def test_sync_makes_a_twin_and_says_what_to_solve(lesson: Path) -> None:
    notebooks.twin_of(lesson).unlink()
    assert twins.sync(lesson) == ["10.1"]
    assert twins.pair_problems(lesson) == ["exercise 10.1 is not solved in the twin"]


@pytest.mark.parametrize("name", ["exercise id", "no exercise"])
def test_sync_throws_no_solution_away(lesson: Path, name: str) -> None:
    before = notebooks.twin_of(lesson).read_bytes()
    change(lesson, DRIFT[name])
    with pytest.raises(notebooks.NotebookError, match="solves 10.1"):
        twins.sync(lesson)
    assert notebooks.twin_of(lesson).read_bytes() == before


def test_lint_command_mends_format_and_fails_on_drift(lesson: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lesson.parent.parent)
    change(lesson, lambda notebook: notebook.metadata.update(widgets={}))
    assert CliRunner().invoke(app, ["lint"]).exit_code == 1
    assert CliRunner().invoke(app, ["lint", "--fix"]).exit_code == 0
    change(lesson, DRIFT["source"])
    said = CliRunner().invoke(app, ["lint", "--fix", "10"])
    assert said.exit_code == 1 and "cell 4 and the solved twin's differ" in said.stdout


@pytest.mark.parametrize(
    ("given", "tested"),
    [
        ([], ["10", "10 solved", "12", "12 solved"]),
        (["10"], ["10", "10 solved"]),
        (["12__other", "10"], ["12", "12 solved", "10", "10 solved"]),
        (["notebooks/10__count_bytes.ipynb"], ["10"]),
        (["notebooks/solutions/10__count_bytes.ipynb"], ["10 solved"]),
        (["notebooks/10__count_bytes.ipynb", "10"], ["10", "10 solved"]),
    ],
)
def test_gate_takes_a_lesson_with_its_twin_and_a_path_alone(
    lesson: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], tested: list[str]
) -> None:
    other = lesson.with_name("12__other.ipynb")
    notebooks.write(other, build(STUB))
    notebooks.write(notebooks.twin_of(other), build(SOLVED))
    monkeypatch.chdir(lesson.parent.parent)
    seen: list[Path] = []
    monkeypatch.setattr(gate, "main", lambda paths, **options: seen.extend(paths) or 0)
    assert CliRunner().invoke(app, ["gate", *given]).exit_code == 0
    assert [path.name[:2] + " solved" * (path.parent.name == notebooks.SOLUTIONS) for path in seen] == tested
