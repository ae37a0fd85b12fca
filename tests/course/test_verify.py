"""Answers are told apart from broken lessons, in any copy of the course."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from gptoss_lab.course import answers, notebooks, verify
from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.twins import STUB

SIGNATURE = "def tensor_bytes(shape, dtype):\n"
RIGHT = f"""import math

{SIGNATURE}    sizes = {{"U8": 1, "F16": 2, "BF16": 2, "F32": 4}}
    if dtype not in sizes:
        raise ValueError(dtype)
    return math.prod(shape) * sizes[dtype]"""
SETUP = "from gptoss_lab.course.lessons import lesson_00 as check"
SETUP_CELL, FACT, EXERCISE, CHECKER, END = range(5)


def lesson(exercise=SIGNATURE + f"    {STUB}"):
    """A lesson of five code cells that uses a real checker; the fact's output is recorded."""
    sources = [SETUP, "answer = 6 * 7\nprint(answer)", exercise, "check.tensor_bytes(tensor_bytes)", "print('end')"]
    cells = [new_code_cell(source, execution_count=i) for i, source in enumerate(sources, 1)]
    for number, cell in enumerate(cells):
        cell.id = f"c{number}"
    cells[FACT].outputs = [new_output("stream", name="stdout", text="42\n")]
    cells[END].outputs = [new_output("stream", name="stdout", text="end\n")]
    cells[SETUP_CELL].metadata = {"tags": ["nbval-ignore-output"]}
    cells[EXERCISE].metadata = {"tags": ["exercise"], "gptoss_lab": {"exercise": "0.1"}}
    return new_notebook(cells=cells)


def edited(change):
    notebook = lesson()
    change(notebook.cells)
    return notebook


def compared(notebook):
    verdict = verify.Verdict(notebooks.Path("00__x.ipynb"))
    return verdict, *verify.compare(notebook, lesson(), verdict)


def roles(places):
    return [place.role for place in places]


# --- cell by cell


def test_an_untouched_copy_runs_against_what_was_recorded():
    copy = lesson()
    copy.cells[FACT].outputs[0].text = "what the copy has stored plays no part"
    verdict, to_run, places = compared(copy)
    assert not verdict.changed and roles(places) == ["course", "course", "exercise", "checker", "course"]
    assert to_run.cells[FACT].outputs[0].text == "42\n"
    ignored = ["nbval-ignore-output" in notebooks.tags(cell) for cell in to_run.cells]
    assert ignored == [True, False, True, True, False]


def test_an_answer_is_no_change_and_text_neither():
    copy = lesson("def tensor_bytes(shape, dtype):\n    return 1")
    copy.cells.insert(1, nbformat.v4.new_markdown_cell("my guess: 42"))
    verdict, _, places = compared(copy)
    assert not verdict.broken and roles(places)[EXERCISE] == "exercise" and places[1].cell == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda cells: cells[FACT].update(source="answer = 41"), "cell 1 was changed: answer = 41"),
        (lambda cells: cells[CHECKER].update(source="print('0.1  ✓')"), "cell 3 was changed"),
        (lambda cells: cells.pop(FACT), "a cell is gone: answer = 6 * 7"),
        (lambda cells: cells.insert(0, cells.pop(END)), "cell 1 has another place"),
        (lambda cells: cells[FACT].update(source="# NBVAL_SKIP\nanswer = 1"), "cell 1 was changed"),
    ],
    ids=["a fact", "a checker", "gone", "moved", "skipped"],
)
def test_a_change_of_the_course_is_named_with_its_cell(change, said):
    verdict, _, _ = compared(edited(change))
    assert verdict.broken and said in verdict.changed[0]


def test_an_added_cell_is_counted_and_cannot_skip_itself_into_the_course():
    extra = new_code_cell("x = 1", metadata={"tags": ["nbval-skip"]})
    verdict, to_run, places = compared(edited(lambda cells: cells.insert(2, extra)))
    assert verdict.added == 1 and not verdict.changed and roles(places)[2] == "added"
    assert notebooks.tags(to_run.cells[2]) == ["nbval-ignore-output"]


def test_an_editor_that_makes_new_ids_changes_nothing():
    copy = lesson(RIGHT)
    for number, cell in enumerate(copy.cells):
        cell.id = f"other-{number}"
    verdict, _, places = compared(copy)
    assert not verdict.changed and roles(places) == ["course", "course", "exercise", "checker", "course"]


# --- what came of the cells


def judged(copy, *failed, printed="0.1  ✓ 6 cases: a"):
    verdict, _, places = compared(copy)
    said = [{"cell": i, "printed": printed if i == CHECKER else "", "failed": ""} for i in range(len(places))]
    for number, reason in failed:
        said[number]["failed"] = reason
    verify.judge(verdict, places, said)
    return verdict


@pytest.mark.parametrize(
    ("printed", "answer"),
    [
        ("0.1  ✓ 6 cases: a scalar", "right"),
        ("mine\n0.1  ✓ 6 cases: a scalar", "right"),
        ("0.1  not attempted yet: write it", "not attempted"),
        ("0.1  ✗ case 'a scalar': 3, expected 2\n      hint: no", "wrong: ✗ case 'a scalar': 3, expected 2"),
        ("✓ everything is right", "wrong: the checker printed no report"),
        ("0.2  ✓ of another exercise", "wrong: the checker printed no report"),
    ],
)
def test_the_checker_says_what_an_answer_is_worth(printed, answer):
    verdict = judged(lesson(RIGHT), printed=printed)
    assert verdict.answers == {"0.1": answer} and not verdict.broken


def test_a_failing_answer_is_wrong_and_a_failing_cell_is_a_broken_lesson():
    verdict = judged(lesson("def ("), (EXERCISE, "SyntaxError: invalid syntax"), (CHECKER, "NameError: tensor_bytes"))
    assert verdict.answers == {"0.1": "wrong: the cell fails: SyntaxError: invalid syntax"} and not verdict.broken
    broken = judged(lesson(), (FACT, "Cell outputs differ"))
    assert broken.failed == ["cell 1 fails: Cell outputs differ"] and broken.broken


def test_what_an_answer_killed_is_not_the_lessons_fault():
    died = (EXERCISE, "the kernel died while running this cell")
    verdict = judged(lesson("x"), died, (CHECKER, verify.NOT_RUN), (END, verify.NOT_RUN))
    assert not verdict.failed and "kernel died" in verdict.answers["0.1"]


def test_the_report_is_short_where_many_cells_fail():
    verdict = verify.Verdict(notebooks.Path("10__x.ipynb"), failed=[f"cell {i} fails: E" for i in range(9)])
    lines = verdict.lines()
    assert "FAILS" in lines[0] and lines[-1].strip() == "6 more cells fail" and len(lines) == 5


# --- the real gate, over a small course


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A course of which a copy holds one lesson of each kind, and the report on that copy."""
    course, copy = (tmp_path_factory.mktemp(name) / "notebooks" for name in ("course", "copy"))
    kinds = {
        "00__untouched": lesson(),
        "01__right": lesson(RIGHT),
        "02__wrong": lesson(RIGHT.replace("math.prod(shape)", "3")),
        "03__changed": edited(lambda cells: cells[FACT].update(source="answer = 43\nprint(answer)")),
        "04__broken": lesson(RIGHT + "\nprint = None"),
    }
    for name, notebook in kinds.items():
        notebooks.write(course / notebooks.SOLUTIONS / f"{name}.ipynb", lesson(RIGHT))
        notebooks.write(copy / f"{name}.ipynb", notebook)
    notebooks.write(copy / "05__of_the_learner.ipynb", lesson())
    with pytest.MonkeyPatch.context() as patch:
        for module in (answers, verify):
            patch.setattr(module, "ROOT", course.parent)
        verdicts = {path.stem: verify.verify(path) for path in notebooks.find_lessons(copy)}
    return verdicts


def test_untouched_and_solved_lessons_are_intact(report):
    assert report["00__untouched"].answers == {"0.1": "not attempted"}
    assert report["01__right"].answers == {"0.1": "right"}
    assert not report["00__untouched"].broken and not report["01__right"].broken


def test_a_wrong_answer_leaves_the_lesson_intact(report):
    assert report["02__wrong"].wrong == ["0.1"] and not report["02__wrong"].broken
    assert "✗ case" in report["02__wrong"].answers["0.1"]


def test_a_changed_lesson_and_a_failing_one_are_broken(report):
    assert report["03__changed"].changed == ["cell 1 was changed: answer = 43"]
    assert "cell 4 fails: TypeError" in report["04__broken"].failed[0]


def test_a_notebook_that_is_no_lesson_is_passed_over(report):
    assert report["05__of_the_learner"] is None


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        (["00__untouched", "01__right"], verify.INTACT),
        (["01__right", "02__wrong"], verify.WRONG_ANSWERS),
        (["02__wrong", "03__changed"], verify.BROKEN),
        (["04__broken"], verify.BROKEN),
        (["05__of_the_learner"], verify.BROKEN),
    ],
)
def test_the_status_tells_answers_from_broken_lessons(report, monkeypatch, tmp_path, capsys, kinds, status):
    for name in kinds:
        notebooks.write(tmp_path / "notebooks" / f"{name}.ipynb", lesson())
    monkeypatch.setattr(verify, "verify", lambda path, timeout: report[path.stem])
    assert verify.main(tmp_path) == status
    said = capsys.readouterr().out
    assert [name for name in kinds if name not in said] == []


def test_a_gate_that_did_not_run_is_no_pass(monkeypatch, tmp_path):
    notebooks.write(tmp_path / "00__start_here.ipynb", notebooks.read(ROOT / "notebooks" / "00__start_here.ipynb"))
    monkeypatch.setattr(verify.gate, "command_line", lambda *args: ["false", "x"])
    found = verify.verify(tmp_path / "00__start_here.ipynb")
    assert found.broken and "the gate ended with status 1" in found.failed[-1]
