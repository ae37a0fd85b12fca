"""Every solved twin's solution passes its checker, and every stub is a calm line."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gptoss_lab.course.check import all_checkers
from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.notebooks import exercise_id, find_lessons, read, twin_of

LESSONS = find_lessons(ROOT / "notebooks")
CHECKERS = all_checkers()


def exercises(path: Path) -> list[str]:
    """The ids of a notebook's exercises, in order."""
    return [name for cell in read(path).cells if (name := exercise_id(cell)) is not None]


EXERCISES = [(lesson, exercise) for lesson in LESSONS for exercise in exercises(lesson)]


def defined(path: Path, exercise: str) -> Callable:
    """Run a notebook's set-up, its imports and its exercise cells up to one: the function that this one defines."""
    namespace = {}
    for number, source in enumerate(sources(path, exercise)):
        name = f"{path.name} {exercise} {number}"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)  # Triton reads a kernel's source
        exec(compile(source, name, "exec"), namespace)
    return namespace[CHECKERS[exercise].name]


def sources(path: Path, exercise: str) -> Iterator[str]:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    yield cells[0].source
    for cell in cells[1:]:
        yield cell.source if exercise_id(cell) is not None else imports(cell.source)
        if exercise_id(cell) == exercise:
            return
    raise AssertionError(f"{path.name} has no exercise {exercise}")


def imports(source: str) -> str:
    """The import statements of a cell, which are cheap where the rest of it may load a model."""
    statements = ast.parse(source).body
    return "\n".join(ast.unparse(line) for line in statements if isinstance(line, ast.Import | ast.ImportFrom))


def name_of(value: object) -> str:
    return value.stem.split("__")[0] if isinstance(value, Path) else str(value)


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES, ids=name_of)
def test_the_solution_passes(lesson, exercise):
    solution, returns = defined(twin_of(lesson), exercise), set()

    @functools.wraps(solution)
    def noted(*args, **kwargs):
        result = solution(*args, **kwargs)
        returns.add(result is None)
        return result

    verdict = CHECKERS[exercise].verdict(noted)
    assert verdict.passed, str(verdict)
    assert CHECKERS[exercise].may_be_none == (returns == {True, False})


@pytest.mark.parametrize(("lesson", "exercise"), EXERCISES, ids=name_of)
def test_the_stub_is_not_attempted(lesson, exercise):
    verdict = CHECKERS[exercise].verdict(defined(lesson, exercise))
    assert not verdict.attempted
    assert f"write `{CHECKERS[exercise].name}`" in str(verdict)


def test_each_exercise_has_a_checker_and_each_checker_an_exercise():
    asked = [exercise for _, exercise in EXERCISES]
    assert sorted(asked) == sorted(CHECKERS)
    assert [exercise for lesson in LESSONS for exercise in exercises(twin_of(lesson))] == asked


def test_each_exercise_is_checked_in_the_cell_below_it():
    for lesson in LESSONS:
        code = [cell for cell in read(lesson).cells if cell.cell_type == "code"]
        for cell, below in zip(code, code[1:], strict=False):
            if exercise_id(cell) is not None:
                name = CHECKERS[exercise_id(cell)].name
                assert below.source == f"check.{name}({name})", lesson.name
