"""Widgets and their static twins."""

from __future__ import annotations

import re
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import nbformat
import pytest
from nbclient import NotebookClient

from gptoss_lab.course import widgets
from gptoss_lab.course.figures import picture
from gptoss_lab.course.widgets import explorer, stepper

matplotlib.use("agg")
VIEW = "application/vnd.jupyter.widget-view+json"


def paragraph(limit):
    return f"<p>the limit is {limit}</p>"


def draw(count):
    fig, ax = plt.subplots(figsize=(2, 1))
    ax.bar(range(count), range(count))
    return fig, f"A chart of {count} bars, rising"


@pytest.mark.parametrize(
    ("control", "value"),
    [("dropdown", "4"), ("buttons", "4"), ("slider", 2)],
    ids=["dropdown", "buttons", "slider"],
)
def test_moving_the_control_changes_the_output(control, value):
    shown = explorer([1, 2, 4], paragraph, label="limit", control=control)
    assert "limit is 1" in shown.output.value
    shown.controls[0].value = value
    assert "limit is 4" in shown.output.value and shown.chosen == "4"


def test_slider_and_dropdown_move_together():
    shown = explorer([1, 2, 4], paragraph, label="limit", start=2, control="slider")
    slider, dropdown = shown.controls
    assert (slider.value, dropdown.value) == (1, "2")
    dropdown.value = "4"
    assert slider.value == 2
    slider.value = 0
    assert dropdown.value == "1" and "limit is 1" in shown.output.value


def test_every_control_is_labelled():
    for control in widgets.CONTROLS:
        shown = explorer([1, 2], paragraph, label="limit", control=control)
        assert shown.controls[0].description == "limit"
        assert all(each.description for each in shown.controls)


def test_names_stand_for_values_and_each_is_rendered_once():
    calls = []

    def render(value):
        calls.append(value)
        return paragraph(value)

    shown = explorer({"small": 256, "large": 4096}, render, label="limit")
    shown.choose("large")
    shown.choose("small")
    shown.choose("large")
    assert sorted(calls) == [256, 4096]
    assert "limit is 4096" in shown.output.value


def test_the_twin_lays_out_first_middle_and_last():
    bundle = explorer(range(1, 8), paragraph, label="limit")._repr_mimebundle_()
    assert re.findall(r"the limit is (\d)", bundle["text/html"]) == ["1", "4", "7"]
    assert bundle["text/plain"].splitlines() == [
        "limit",
        "limit: 1: the limit is 1",
        "limit: 4: the limit is 4",
        "limit: 7: the limit is 7",
    ]
    assert VIEW in bundle


def test_the_twin_shows_the_states_asked_for_and_refuses_others():
    html = explorer(range(1, 8), paragraph, label="limit", twin=[2, 3])._repr_mimebundle_()["text/html"]
    assert re.findall(r"the limit is (\d)", html) == ["2", "3"]
    with pytest.raises(ValueError, match="no choice '9'"):
        explorer([1, 2], paragraph, label="limit", twin=[9])
    with pytest.raises(ValueError, match="no choice '9'"):
        explorer([1, 2], paragraph, label="limit", start=9)
    with pytest.raises(ValueError, match="no choice '9'"):
        explorer([1, 2], paragraph, label="limit").choose("9")


def test_the_twin_borrows_the_colours_of_the_page_and_carries_no_ids():
    first, second = (explorer([1, 2], draw, label="bars")._repr_mimebundle_() for _ in range(2))
    assert first["text/html"] == second["text/html"] and first["text/plain"] == second["text/plain"]
    frame = re.sub(r"<img [^>]*>", "", first["text/html"])
    assert "color:inherit" in frame and "currentColor" in frame and not re.search(r"#[0-9a-f]{3}", frame)


def test_figures_and_pictures_keep_their_alt_text():
    shown = explorer([2, 3], draw, label="bars")
    assert 'alt="A chart of 2 bars, rising"' in shown.output.value
    assert "Figure: A chart of 3 bars, rising" in repr(shown)
    assert widgets.as_html(picture(*draw(2))) == shown.output.value
    assert plt.get_fignums() == []


def test_useless_widgets_are_refused():
    with pytest.raises(ValueError, match="at least two"):
        explorer([1], paragraph, label="limit")
    with pytest.raises(ValueError, match="needs a label"):
        explorer([1, 2], paragraph, label=" ")
    with pytest.raises(ValueError, match="'knob'"):
        explorer([1, 2], paragraph, label="limit", control="knob")
    with pytest.raises(TypeError, match="cannot show a int"):
        explorer([1, 2], lambda value: value, label="limit")
    with pytest.raises(ValueError, match="2 frames and 1 captions"):
        stepper(["<p>a</p>", "<p>b</p>"], ["first"])


def test_the_stepper_steps_and_stops_at_both_ends():
    steps = stepper(["<p>empty</p>", "<p>half</p>", "<p>full</p>"], ["a", "b", "c"])
    seen = [(steps.output.value, steps.back.disabled, steps.next.disabled)]
    for button in (steps.next, steps.next, steps.next, steps.back):
        button.click()
        seen.append((steps.output.value, steps.back.disabled, steps.next.disabled))
    words = [re.search("empty|half|full", value).group() for value, _, _ in seen]
    assert words == ["empty", "half", "full", "full", "half"]
    assert [ends for _, *ends in seen] == [
        [True, False],
        [False, False],
        [False, True],
        [False, True],
        [False, False],
    ]
    assert "2 of 3: b" in steps.output.value


def test_the_stepper_has_all_frames_in_its_twin():
    bundle = stepper(["<p>empty</p>", draw(3)], ["at first", "then"], label="Filling")._repr_mimebundle_()
    assert bundle["text/plain"].splitlines() == [
        "Filling",
        "1 of 2: at first: empty",
        "2 of 2: then: Figure: A chart of 3 bars, rising",
    ]


def test_a_kernel_without_ipywidgets_shows_the_twin():
    script = (
        "import sys; sys.modules['ipywidgets'] = None\n"
        "from gptoss_lab.course.widgets import explorer, stepper\n"
        "shown = explorer([1, 2], lambda value: f'<p>{value}</p>', label='limit', control='slider')\n"
        "shown.choose('2'); assert shown.shown == '<p>2</p>'\n"
        "steps = stepper(['<p>a</p>', '<p>b</p>'], ['one', 'two']); steps.go(1); assert steps.at == 1\n"
        "print(sorted(shown._repr_mimebundle_()), sorted(steps._repr_mimebundle_()))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "['text/html', 'text/plain'] ['text/html', 'text/plain']", run.stderr


def test_a_notebook_stores_the_same_text_in_every_run():
    source = (
        "from gptoss_lab.course.widgets import explorer\n"
        "explorer([1, 2], lambda value: f'<p>{value}</p>', label='limit', control='slider')"
    )
    stored = []
    for _ in range(2):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        NotebookClient(notebook, timeout=120).execute()
        (output,) = notebook.cells[0].outputs
        stored.append({mime: text for mime, text in output.data.items() if mime != VIEW})
        assert VIEW in output.data
    assert stored[0] == stored[1]
