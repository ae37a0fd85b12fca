"""The browser tests can fail: notebooks with a fault each, and widgets as the course makes them."""

from __future__ import annotations

import nbformat
import pytest
from lab_controls import move_controls, widget_cells
from lab_page import PICTURE_HEIGHT, THEMES
from lab_server import running_lab

pytestmark = pytest.mark.browser

WIDGETS = """\
from gptoss_lab.course.widgets import explorer
explorer(["1 KiB", "2 KiB", "4 KiB"], lambda limit: f"<p>up to {limit}</p>", label="limit", control=CONTROL)
"""
STEPS = """\
from gptoss_lab.course.widgets import stepper
stepper(["<p>empty</p>", "<p>half</p>", "<p>full</p>"], ["first", "second", "third"])
"""
DEAD = """\
import ipywidgets
ipywidgets.VBox([ipywidgets.Dropdown(options=["a", "b"], description="dead"), ipywidgets.HTML("still")])
"""
LOCKED = """\
import ipywidgets
ipywidgets.VBox([ipywidgets.Button(description="locked", disabled=True), ipywidgets.HTML("still")])
"""
COMPLAINT = """\
from IPython.display import Javascript
Javascript("console.error('planted')")
"""
FIGURE = """\
import matplotlib.pyplot as plt
from gptoss_lab.course import figures
with figures.style():
    fig, ax = plt.subplots()
    ax.bar(["kept", "lost"], [7, 148], color=[figures.colour("ok"), figures.colour("wrong")])
figures.show(fig, "Two bars: 7 tensors are kept, 148 are lost", "What survives")
"""


def write_notebook(lab, name, *sources):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, lab.root / name)
    return name


def height_of(png):
    """The height in a PNG's header: after 8 bytes of signature, 8 of chunk head and 4 of width."""
    return int.from_bytes(png.read_bytes()[20:24], "big")


@pytest.fixture
def run(lab, open_lesson):
    """Write a notebook with these cells, open it and run it all."""

    def write_and_run(*sources):
        lesson = open_lesson(write_notebook(lab, "planted.ipynb", *sources))
        lesson.run_all()
        return lesson

    return write_and_run


def test_a_failed_cell_is_named_and_so_is_the_one_not_reached(run):
    lesson = run("1 + 1", "1 / 0", "2 + 2")
    assert lesson.failed_cells() == ["cell 1: ZeroDivisionError: division by zero", "cell 2 did not run"]


def test_a_console_error_is_heard(run):
    lesson = run(COMPLAINT)
    assert [text for text in lesson.complaints if "planted" in text]


def test_a_control_that_drives_nothing_is_named(run, monkeypatch):
    monkeypatch.setattr("lab_controls.CHANGE_SECONDS", 1)
    lesson = run(DEAD, LOCKED)
    assert widget_cells(lesson) == [0, 1]
    assert ["dead" in fault and "changes nothing" in fault for fault in move_controls(lesson, 0)] == [True]
    assert ["locked" in fault and "never be used" in fault for fault in move_controls(lesson, 1)] == [True]


def test_the_widgets_of_the_course_work(run):
    cells = [WIDGETS.replace("CONTROL", repr(control)) for control in ("dropdown", "slider", "buttons")]
    lesson = run(*cells, STEPS)
    assert widget_cells(lesson) == [0, 1, 2, 3]
    assert [move_controls(lesson, index) for index in range(4)] == [[], [], [], []]
    assert not lesson.failed_cells() and not lesson.complaints


def test_a_cell_is_written_run_and_read(run):
    lesson = run("answer = 1", "print(answer)")
    lesson.set_cell(0, "answer = 42")
    lesson.run_cell(0)
    lesson.run_cell(1)
    assert lesson.cell_output_text(1).strip() == "42"


def test_both_themes_are_pictured_whole(run, tmp_path):
    lesson = run(FIGURE, *["print('line\\n' * 60)"] * 5)
    pictures = {}
    for theme in THEMES:
        lesson.use_theme(theme)
        pictures[theme] = lesson.picture(tmp_path / theme)
    whole = lesson.page.locator(".jp-WindowedPanel-outer").evaluate("node => node.scrollHeight")
    heights = [height_of(path) for path in pictures["light"]]
    assert max(heights) <= PICTURE_HEIGHT < whole <= sum(heights)
    assert [path.name for path in pictures["light"][:2]] == ["light-1.png", "light-2.png"]
    assert pictures["light"][0].read_bytes() != pictures["dark"][0].read_bytes()
    alt = lesson.page.locator(".jp-OutputArea img").get_attribute("alt")
    assert alt == "Two bars: 7 tensors are kept, 148 are lost"


@pytest.fixture
def lab_without_widgets(tmp_path):
    with running_lab(tmp_path, without_widgets=True) as lab:
        yield lab


def test_without_the_widget_extension_the_twin_is_shown(lab_without_widgets, open_in):
    lesson = open_in(lab_without_widgets, write_notebook(lab_without_widgets, "twin.ipynb", STEPS))
    lesson.run_all()
    assert lesson.page.locator(".jupyter-widgets").count() == 0
    shown = lesson.cell_output_text(0)
    assert [word for word in ("empty", "half", "full", "3 of 3: third") if word not in shown] == []
