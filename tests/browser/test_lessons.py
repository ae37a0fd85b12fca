"""Every lesson in a real JupyterLab: it runs, complains of nothing, its controls work, and it is pictured."""

from __future__ import annotations

import pytest
from lab_controls import move_controls, widget_cells
from lab_page import THEMES
from lab_server import REPOSITORY

from gptoss_lab.course import notebooks

pytestmark = pytest.mark.browser

LESSONS = [path.name for path in notebooks.find_lessons(REPOSITORY / "notebooks")]
SCREENS = REPOSITORY / "build" / "screens"


def test_there_are_lessons():
    assert LESSONS, "no lesson was found in notebooks/"


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_in_jupyterlab(open_lesson, name):
    lesson = open_lesson(name)
    lesson.clear_outputs()
    lesson.run_all()
    for theme in THEMES:
        lesson.use_theme(theme)
        assert lesson.picture(SCREENS / f"{name.removesuffix('.ipynb')}-{theme}")
    assert not lesson.failed_cells()
    faults = [fault for index in widget_cells(lesson) for fault in move_controls(lesson, index)]
    assert not faults
    assert not lesson.complaints
