"""Passed exercises are remembered for a learner, and for nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient
from typer.testing import CliRunner

from gptoss_lab.cli import app
from gptoss_lab.course import journal
from gptoss_lab.course.check import Checker
from gptoss_lab.course.map import CourseProgress, Entry, course_progress
from gptoss_lab.course.runner import ThisEnvironment, kernel_environment

LESSON = Path("/srv/notebooks/16__the_fix.ipynb")
TESTS = ("PYTEST_VERSION", "PYTEST_CURRENT_TEST", "CI")
PASS = """\
import math
from gptoss_lab.course.lessons import lesson_00 as check

def tensor_bytes(shape, dtype):
    sizes = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4}
    if dtype not in sizes:
        raise ValueError(f"no size is known for {dtype}")
    return math.prod(shape) * sizes[dtype]

check.tensor_bytes(tensor_bytes)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "state" / "progress.json"
    monkeypatch.setenv(journal.SETTING, str(path))
    return path


# --- where, and whose


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no", " false "])
def test_it_can_be_switched_off(word):
    assert journal.journal_file({journal.SETTING: word}) is None


def test_the_file_lies_in_the_state_folder_unless_another_is_named():
    assert journal.journal_file({"XDG_STATE_HOME": "/state"}) == Path("/state/gptoss-lab/progress.json")
    assert journal.journal_file({}) == Path.home() / ".local/state/gptoss-lab/progress.json"
    assert journal.journal_file({"XDG_STATE_HOME": "not/absolute"}) == journal.journal_file({})
    assert journal.journal_file({journal.SETTING: "~/mine.json"}) == Path.home() / "mine.json"


@pytest.mark.parametrize(
    ("notebook", "environment", "expected"),
    [
        (LESSON, {}, True),
        (LESSON, {"CI": "false"}, True),
        (Path("/home/solutions/notebooks/16__the_fix.ipynb"), {}, True),
        (None, {}, False),
        (Path("/srv/notebooks/solutions/16__the_fix.ipynb"), {}, False),
        (LESSON, {"CI": "true"}, False),
        (LESSON, {"CI": "1"}, False),
        (LESSON, {"PYTEST_VERSION": "9.0"}, False),
        (LESSON, {"PYTEST_CURRENT_TEST": "x"}, False),
    ],
)
def test_a_pass_counts_in_a_learners_lesson_only(notebook, environment, expected):
    assert journal.is_learners(notebook, environment) is expected


@pytest.mark.parametrize(
    ("shell", "session", "expected"),
    [
        (None, str(LESSON), None),
        (SimpleNamespace(user_ns={}), str(LESSON), None),
        (SimpleNamespace(user_ns={}, kernel=1), str(LESSON), LESSON),
        (SimpleNamespace(user_ns={}, kernel=1), "/srv/console-1", None),
        (SimpleNamespace(user_ns={}, kernel=1), None, None),
        (SimpleNamespace(user_ns={"__vsc_ipynb_file__": str(LESSON)}, kernel=1), None, LESSON),
    ],
    ids=["no IPython", "a terminal", "JupyterLab", "a console", "nbclient", "VS Code"],
)
def test_the_notebook_is_named_by_its_server(monkeypatch, shell, session, expected):
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    if session is None:
        monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    else:
        monkeypatch.setenv("JPY_SESSION_NAME", session)
    assert journal.open_notebook() == expected


# --- the checker and the kernel


def test_a_checker_that_passes_is_remembered_and_one_that_fails_is_not(file, monkeypatch, capsys):
    double = Checker("7.1", "double")
    double.case("one")(lambda double: None if double(1) == 2 else 1 / 0)
    monkeypatch.setattr(journal, "is_learners", lambda notebook: True)
    double(lambda x: 3)
    assert not file.exists()
    double(lambda x: 2 * x)
    assert list(journal.passed(file)) == ["7.1"]


@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
def test_a_kernel_of_a_server_keeps_a_pass_unless_it_runs_a_twin(file, monkeypatch, tmp_path, folder):
    for name in TESTS:
        monkeypatch.delenv(name, raising=False)
    run_kernel(dict(os.environ) | {"JPY_SESSION_NAME": str(tmp_path / folder / "00__start_here.ipynb")})
    assert file.exists() == (folder == "notebooks")


def test_what_the_runner_and_the_gate_start_keeps_nothing_even_below_a_server(file, monkeypatch):
    for name in TESTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JPY_SESSION_NAME", str(LESSON))
    run_kernel(kernel_environment())
    assert not file.exists()


def run_kernel(environment):
    """Pass exercise 0.1 in a real kernel with this environment."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PASS)])
    client = NotebookClient(notebook, kernel_manager_class=ThisEnvironment, kernel_name="python3")
    client.execute(env=environment)
    assert "0.1  ✓" in notebook.cells[0].outputs[0].text


def test_a_file_that_cannot_be_written_is_one_line_and_no_traceback(tmp_path, monkeypatch, capsys):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv(journal.SETTING, str(tmp_path / "a file" / "progress.json"))
    monkeypatch.setattr(journal, "is_learners", lambda notebook: True)
    journal.remember("1.1")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "progress is not kept" in said and f"{journal.SETTING}=off" in said


# --- the file


def test_the_first_pass_is_kept_and_unknown_keys_too(file):
    file.parent.mkdir()
    file.write_text('{"passed": {"1.1": "2020-01-01T00:00:00+00:00"}, "later": [1]}')
    journal.add(file, "1.1")
    journal.add(file, "1.2")
    kept = json.loads(file.read_text())
    assert kept["passed"]["1.1"].startswith("2020") and kept["later"] == [1]
    assert set(kept["passed"]) == {"1.1", "1.2"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"passed": []}', '{"passed": {"1.1": 3}}', "\xff\xfe"])
def test_a_damaged_file_is_kept_aside(file, text):
    file.parent.mkdir()
    for number in (1, 2):
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(journal.DamagedJournal):
            journal.passed(file)
        journal.add(file, f"1.{number}")
        assert file.with_name(f"progress.json.damaged-{number}").read_bytes() == text.encode("latin-1")
        assert list(journal.passed(file)) == [f"1.{number}"]


def test_kernels_at_once_do_not_lose_each_others_entries(file):
    # They wait for one another, so that all of them write at the same time.
    program = "import sys, time; from pathlib import Path; from gptoss_lab.course import journal, notebooks\n"
    program += "file, me = Path(sys.argv[1]), sys.argv[2]; (file.parent / me).touch()\n"
    program += "while len(list(file.parent.glob('[0-9]'))) < 3: time.sleep(0.001)\n"
    program += "for i in range(15): journal.add(file, f'{me}.{i}')"
    file.parent.mkdir()
    kernels = [subprocess.Popen([sys.executable, "-c", program, str(file), str(number)]) for number in range(3)]
    assert [kernel.wait(120) for kernel in kernels] == [0, 0, 0]
    assert len(journal.passed(file)) == 45
    assert sorted(path.name for path in file.parent.glob("*.*")) == ["progress.json", "progress.json.lock"]


def test_a_lock_that_is_never_given_back_ends_in_a_line(file, monkeypatch):
    monkeypatch.setattr(journal, "LOCK_SECONDS", 0.1)
    file.parent.mkdir()
    with journal.locked(file), pytest.raises(TimeoutError, match="another process holds"):
        journal.add(file, "1.1")
    started = time.monotonic()
    journal.add(file, "1.1")
    assert "1.1" in journal.passed(file) and started <= time.monotonic()


# --- what the learner sees


ENTRIES = [
    Entry(Path("00__start.ipynb"), "Start", 1, 1, 1, ("0.1",)),
    Entry(Path("10__a.ipynb"), "Look at `a < b`", 2, 1, 1, ("10.1", "10.2")),
    Entry(Path("20__none.ipynb"), "Read", 0, 1, 0),
    Entry(Path("40__b.ipynb"), "Other", 2, 1, 1, ("40.1", "40.2")),
]


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ({}, "0.1"),
        ({"0.1": "1"}, "10.1"),
        ({"40.1": "1"}, "40.2"),
        ({"40.1": "1", "10.1": "2"}, "10.2"),
        ({"40.1": "1", "40.2": "2"}, "0.1"),
        ({"10.1": "1", "10.2": "1"}, "40.1"),
        ({"99.1": "9"}, "0.1"),
    ],
)
def test_the_next_step_follows_the_last_pass(passed, expected):
    shown = CourseProgress(ENTRIES, passed)
    assert shown.next_step()[0] == expected
    assert f"next: exercise {expected} in" in repr(shown)
    assert shown.done == len(set(passed) - {"99.1"})


def test_the_panel_marks_what_is_done_and_escapes():
    shown = CourseProgress(ENTRIES, {"10.1": "1"}, "Kept in <here>")._repr_mimebundle_()
    assert "1 of 5 exercises done" in shown["text/plain"] and "1 of 5 exercises done" in shown["text/html"]
    assert "10.1 ✓ · 10.2" in shown["text/html"] and "10.1 ✓  10.2" in shown["text/plain"]
    assert '<a href="10__a.ipynb">Look at <code>a &lt; b</code></a>' in shown["text/html"]
    assert "&lt;here&gt;" in shown["text/html"]


def test_when_all_is_done_nothing_comes_next():
    everything = CourseProgress(ENTRIES, dict.fromkeys(("0.1", "10.1", "10.2", "40.1", "40.2"), "1"))
    assert everything.next_step() is None
    assert "every exercise is done" in repr(everything) and "every exercise is done" in everything.html()


def test_notebooks_that_a_learner_puts_beside_the_lessons_are_none(tmp_path):
    lesson = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Twice")])
    for name in ("10__twice", "10__twice.mine-1", "10__twice-Copy1"):
        nbformat.write(lesson, tmp_path / f"{name}.ipynb")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "Untitled.ipynb")
    assert [entry.path.stem for entry in course_progress(tmp_path).entries] == ["10__twice"]


def test_the_command_counts_what_was_kept(file):
    journal.add(file, "0.1")
    said = CliRunner().invoke(app, ["progress"])
    assert said.exit_code == 0
    assert "0.1 ✓" in said.stdout and "1 of " in said.stdout and str(file) in said.stdout


def test_switched_off_or_damaged_is_said(file, monkeypatch):
    file.parent.mkdir()
    file.write_text("{")
    assert "cannot be read" in repr(course_progress())
    monkeypatch.setenv(journal.SETTING, "off")
    assert "switched off" in repr(course_progress())
