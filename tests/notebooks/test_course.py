"""The lessons of this repository: format, form, recorded outputs, and each one beside its solved twin.

That they still print what they recorded is the gate's business (`make test`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gptoss_lab.course import lint, notebooks, twins
from gptoss_lab.course.recorded import record_problems

FOLDER = Path(__file__).parents[2] / "notebooks"
LESSONS = notebooks.find_lessons(FOLDER)
ALL = [*LESSONS, *sorted((FOLDER / notebooks.SOLUTIONS).glob("*.ipynb"))]


def test_there_are_lessons() -> None:
    assert LESSONS and LESSONS[0].name == "00__start_here.ipynb"


def test_there_are_as_many_solved_twins() -> None:
    assert len(ALL) == 2 * len(LESSONS)
    assert twins.orphans(FOLDER) == []


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_format(path: Path) -> None:
    assert notebooks.format_problems(path) == []


@pytest.mark.parametrize("path", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recorded_outputs(path: Path) -> None:
    assert record_problems(path) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    assert lint.lesson_problems(path) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_equals_its_solved_twin(path: Path) -> None:
    assert twins.pair_problems(path) == []
