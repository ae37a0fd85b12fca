"""The questions at the end of the lessons: three each, every choice explained, no answer betrayed by its form."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from pathlib import Path

import pytest

from gptoss_lab.course import lessons, notebooks
from gptoss_lab.course.quiz import Question

LESSONS = notebooks.find_lessons(Path(__file__).parents[3] / "notebooks")
LONGEST_LABEL = 90  # in a narrow window a radio button's label does not wrap


def questions(number: str) -> list[Question]:
    return importlib.import_module(f"{lessons.__name__}.quiz_{number}").questions().questions


def numbers() -> list[str]:
    """The lessons that have a quiz."""
    names = [module.name for module in pkgutil.iter_modules(lessons.__path__)]
    return [name.removeprefix("quiz_") for name in names if name.startswith("quiz_")]


def every_question() -> list[Question]:
    return [question for number in numbers() for question in questions(number)]


def test_every_lesson_has_a_quiz_and_every_quiz_a_lesson() -> None:
    assert sorted(numbers()) == [lesson.name[:2] for lesson in LESSONS]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_asks_three_questions_with_an_explanation_for_each_choice(lesson: Path) -> None:
    asked = questions(lesson.name[:2])
    assert len(asked) == 3 and len({question.text for question in asked}) == 3
    for question in asked:
        assert 3 <= len(question.choices) <= 4
        assert question.answer in question.choices
        assert all(why.strip().endswith((".", "?")) for why in question.choices.values())
        assert len(set(question.choices.values())) == len(question.choices)
        assert max(map(len, question.choices)) <= LONGEST_LABEL


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_shows_its_own_quiz_after_the_recap(lesson: Path) -> None:
    cells = notebooks.read(lesson).cells
    call = f"quiz_{lesson.name[:2]}.questions()"
    (at,) = [number for number, cell in enumerate(cells) if ".questions()" in cell.source]
    assert cells[at].source == call
    assert cells[at - 1].source.rstrip().endswith("**Check yourself**")
    assert cells[at + 1].source.startswith("**Further reading**")


def test_the_answer_is_not_told_by_its_length() -> None:
    """In most questions another choice is longer, and another shorter."""
    asked = every_question()
    for extreme in (max, min):
        told = [q.text for q in asked if len(q.answer) == extreme(map(len, q.choices))]
        assert len(told) <= len(asked) / 2, (extreme, told)


def test_the_answer_is_not_told_by_its_place() -> None:
    asked = every_question()
    places = Counter(list(question.choices).index(question.answer) for question in asked)
    assert set(places) == {0, 1, 2, 3}
    assert max(places.values()) <= len(asked) / 2, places
