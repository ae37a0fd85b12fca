"""A checker that gets an older version of the learner's function says so, in a real IPython shell."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from traitlets.config import Config

SETUP = """
from gptoss_lab.course.check import Checker, expect_equal
check = Checker("1.1", "double")
_ = check.case("three")(lambda double: expect_equal(double(3), 6))
"""
RIGHT, WRONG = "def double(x):\n    return 2 * x", "def double(x):\n    return 3 * x"
BROKEN = "def double(x):\n    return 2 *"
FAILS_ABOVE = "import a_module_that_is_not_there\n\n" + RIGHT
FAILS_BELOW = RIGHT + "\n\ndouble()"
CHECK = "check(double)"
OLDER = "The lines below judge your previous version."


@pytest.fixture
def shell():
    """A shell with the checker of `double`, as a kernel has; its history is kept in memory."""
    InteractiveShell.clear_instance()
    config = Config({"HistoryManager": {"hist_file": ":memory:"}})
    shell = InteractiveShell.instance(config=config)
    assert shell.run_cell(SETUP, store_history=True).success
    yield shell
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def said(shell, capsys, *cells: str) -> str:
    """What the last of `cells` prints."""
    for cell in cells:
        capsys.readouterr()
        shell.run_cell(cell, store_history=True)
    return capsys.readouterr().out


@pytest.mark.parametrize("before", [RIGHT, WRONG])
@pytest.mark.parametrize(
    ("cell", "fate"),
    [
        (BROKEN, "ended with SyntaxError"),
        ("def double(x):\nreturn 2 * x", "ended with IndentationError"),
        (FAILS_ABOVE, "stopped above it"),
    ],
)
def test_a_cell_that_did_not_run_is_named(shell, capsys, before, cell, fate):
    lines = said(shell, capsys, before, cell, CHECK).splitlines()
    assert lines[0] == f"1.1  the cell with your last `def double` {fate}: mend it and run it again. {OLDER}"
    assert lines[1].startswith("1.1  ✓" if before == RIGHT else "1.1  ✗")


@pytest.mark.parametrize(
    "cells",
    [
        [RIGHT],
        [BROKEN, RIGHT],
        [WRONG, RIGHT],
        [RIGHT, RIGHT],
        [FAILS_BELOW],
        [RIGHT, "double_it = double; 1 / 0"],
        [RIGHT, "def doubled(x):\n    return"],
        [RIGHT, "text = '''\ndef triple(x:\n'''"],
        ["import functools", RIGHT, "double = functools.lru_cache(double)"],
        [RIGHT, "def timed(f):\n    return lambda x: f(x)", "double = timed(double)"],
        ["double = lambda x: 2 * x"],
        ["%%time\n" + RIGHT],
        [RIGHT + "\n\n" + "%time _ = 1"],
        ["#| a comment\n\n\n" + RIGHT + "\n\n\n"],
    ],
)
def test_it_is_silent_when_all_is_well(shell, capsys, cells):
    printed = said(shell, capsys, *cells, CHECK)
    assert printed.splitlines()[0] == "1.1  ✓ 1 case: three"


def test_a_function_of_a_module_is_not_told_to_be_old(shell, capsys, tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    printed = said(shell, capsys, RIGHT, "from of_mine import double", CHECK)
    assert printed.startswith("1.1  ✗ case 'three': the result is 9, expected 6")


def test_the_function_in_the_cell_of_its_check_is_new(shell, capsys):
    assert said(shell, capsys, WRONG, f"{RIGHT}\n\n{CHECK}").startswith("1.1  ✓")
    assert OLDER in said(shell, capsys, BROKEN, CHECK)


def test_a_stub_below_a_broken_cell_is_told_why(shell, capsys):
    stub = "def double(x):\n    raise NotImplementedError"
    first, second = said(shell, capsys, stub, BROKEN, CHECK).splitlines()
    assert "SyntaxError" in first and second.startswith("1.1  not attempted yet")


def test_it_holds_in_a_kernel():
    cells = [SETUP, RIGHT, CHECK, BROKEN, CHECK, FAILS_ABOVE, CHECK, RIGHT, CHECK]
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, kernel_name="python3", allow_errors=True).execute()
    checks = [cell.outputs[0].text for cell in notebook.cells if cell.source == CHECK]
    assert [OLDER in printed for printed in checks] == [False, True, True, False]
