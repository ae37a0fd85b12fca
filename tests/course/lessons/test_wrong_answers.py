"""Every exercise has at least six wrong answers, and its checker says of each what it should.

The tables stand beside the tests of each lesson: `test_lesson_NN.py` has WRONG, a dict from a checker to its wrong
answers, by label: the answer, and a part of what the learner must be told.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from gptoss_lab.course.check import all_checkers

TABLES = {
    checker: table
    for file in sorted(Path(__file__).parent.glob("test_lesson_*.py"))
    for checker, table in runpy.run_path(str(file))["WRONG"].items()
}
CASES = [
    pytest.param(checker, answer, says, id=f"{checker.exercise} {label}")
    for checker, table in TABLES.items()
    for label, (answer, says) in table.items()
]


def test_each_checker_has_a_table_of_six_different_answers():
    assert {checker.exercise for checker in TABLES} == set(all_checkers())
    assert {c.exercise: len(table) for c, table in TABLES.items() if len({a for a, _ in table.values()}) < 6} == {}


@pytest.mark.parametrize(("checker", "answer", "says"), CASES)
def test_a_wrong_answer_is_told_why(checker, answer, says):
    verdict = checker.verdict(answer)
    assert verdict.attempted and not verdict.passed, str(verdict)
    assert says in str(verdict), str(verdict)
