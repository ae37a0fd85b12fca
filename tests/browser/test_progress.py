"""What a learner sees of an exercise in a real JupyterLab, and that a pass is kept and counted."""

from __future__ import annotations

import json

import pytest
from lab_server import REPOSITORY, running_lab

from gptoss_lab.course import journal, notebooks
from gptoss_lab.course.answers import solution

pytestmark = pytest.mark.browser

LESSON = "00__start_here.ipynb"
WRONG = """\
def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    size = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4}[dtype]
    for n in shape:
        size *= n
    return size
"""
PANEL = "from gptoss_lab.course.map import course_progress\ncourse_progress()"
QUIZ = """\
from gptoss_lab.course import quiz
quiz.ask(
    "Which size has `BF16`?",
    {
        "one byte": "That is `U8`.",
        "two bytes, since it keeps the exponent of `F32` and drops the lower half of its bits, all of them": "Yes.",
    },
    answer="one byte",
)
"""


@pytest.fixture(scope="module")
def progress_file(tmp_path_factory):
    return tmp_path_factory.mktemp("state") / "progress.json"


@pytest.fixture(scope="module")
def learners_lab(tmp_path_factory, progress_file):
    """JupyterLab as a learner starts it, not as a test does: below pytest or in CI nothing would be kept."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTEST_VERSION", "PYTEST_CURRENT_TEST", "CI"):
            patch.delenv(name, raising=False)
        patch.setenv(journal.SETTING, str(progress_file))
        with running_lab(tmp_path_factory.mktemp("learner"), REPOSITORY / "notebooks") as lab:
            yield lab


@pytest.fixture
def lesson(learners_lab, open_in, progress_file):
    """The first lesson, open, with nothing passed yet."""
    progress_file.unlink(missing_ok=True)
    return open_in(learners_lab, LESSON)


def answer(lesson, source):
    """Run the setup, write `source` into the exercise, check it, and return what stands below the check."""
    at = lesson.cell_with("exercise")
    lesson.run_cell(next(index for index, cell in enumerate(lesson.cells()) if cell["cell_type"] == "code"))
    if source is not None:
        lesson.set_cell(at, source)
    lesson.run_cell(at)
    lesson.run_cell(at + 1)
    return lesson.cell_output_text(at + 1)


def solve():
    return solution("0.1", [REPOSITORY / "notebooks" / LESSON])


def show_panel(lesson):
    """Let the cell after the check show the panel, and return what the reader sees."""
    at = lesson.cell_with("exercise")
    lesson.set_cell(at + 1, PANEL)
    lesson.run_cell(at + 1)
    return lesson.cell_output_text(at + 1)


def test_an_exercise_not_attempted_is_a_calm_line_and_counts_nothing(lesson, progress_file):
    said = answer(lesson, None)
    assert "0.1  not attempted yet: write `tensor_bytes`" in said and "Traceback" not in said
    assert not progress_file.exists()
    assert "0 of " in show_panel(lesson)


def test_a_pasted_solution_turns_green_and_the_panel_counts_it(lesson, progress_file):
    assert "0.1  ✓" in answer(lesson, solve())
    assert list(json.loads(progress_file.read_text())["passed"]) == ["0.1"]
    panel = show_panel(lesson)
    assert "1 of " in panel and "0.1 ✓" in panel and "next: exercise 10.1 in Find out" in panel
    assert not lesson.complaints


def test_a_pasted_wrong_answer_gets_its_feedback(lesson, progress_file):
    said = answer(lesson, WRONG)
    assert "0.1  ✗ case 'a code that does not exist'" in said and "KeyError" in said and "hint: " in said
    assert not progress_file.exists()


def test_a_solved_twin_counts_nothing(learners_lab, open_in, progress_file):
    progress_file.unlink(missing_ok=True)
    twin = open_in(learners_lab, f"{notebooks.SOLUTIONS}/{LESSON}")
    assert "0.1  ✓" in answer(twin, None)
    assert not progress_file.exists()


def test_a_question_says_why_when_a_choice_is_clicked(lesson):
    at = lesson.cell_with("exercise")
    lesson.set_cell(at, QUIZ)
    lesson.run_cell(at)
    area = lesson.page.locator(".jp-Notebook .jp-Cell").nth(at).locator(".jp-Cell-outputArea")
    area.get_by_label("one byte").check()
    lesson.wait_for(lambda: "✓ Right. That is U8." in lesson.cell_output_text(at), 20, "the explanation")
    long = area.get_by_text("two bytes", exact=False)
    assert long.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), "a long choice is cut off"
    long.click()
    lesson.wait_for(lambda: "✗ No. Yes." in lesson.cell_output_text(at), 20, "the other explanation")
    assert not lesson.complaints
