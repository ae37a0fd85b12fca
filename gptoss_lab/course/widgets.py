"""Widgets that lose nothing without ipywidgets: each has a static twin, laid out in plain HTML.

A notebook stores both. JupyterLab shows the widget; a page, a viewer without widgets or a kernel without
ipywidgets shows the twin. Callbacks observe a control and set a `.value`, which strict comparison can follow.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gptoss_lab.course.figures import Picture, picture

try:
    import ipywidgets
except ImportError:  # the twin alone is shown
    ipywidgets = None

Content = str | Picture | tuple[Any, str]
"""HTML text, a Picture, or a Matplotlib figure with its alt text."""

WHOLE_LABEL = {"description_width": "initial"}
CONTROLS = ("dropdown", "slider", "buttons")
MOST_STATES_IN_TWIN = 3


def as_html(content: Content) -> str:
    """Content as HTML; a figure is drawn and closed."""
    if isinstance(content, tuple):
        content = picture(*content)
    if isinstance(content, Picture):
        return content.html()
    if not isinstance(content, str):
        raise TypeError(f"cannot show a {type(content).__name__}: give HTML, a Picture or (figure, alt)")
    return content


def as_text(content_html: str) -> str:
    """HTML as one line of words, with the alt text in place of each image."""
    text = re.sub(r'<img [^>]*?alt="([^"]*)"[^>]*>', r" Figure: \1 ", content_html)
    text = html.unescape(re.sub(r"<[^>]+>", " ", text))
    return " ".join(text.split())


class Twinned:
    """A widget, or None without ipywidgets, and its static twin: `states` are (heading, HTML) pairs."""

    def __init__(self, title: str, states: Sequence[tuple[str, str]], widget: Any) -> None:
        if not title.strip():
            raise ValueError("a widget needs a label: say what the control chooses")
        self.title, self.states, self.widget = title, list(states), widget

    def twin(self) -> str:
        """The states one below another, in the colours of the page."""
        parts = [
            f'<div style="border-top:1px solid currentColor;padding:0.4em 0"><p style="margin:0.2em 0">'
            f"<strong>{html.escape(heading)}</strong></p>{content}</div>"
            for heading, content in self.states
        ]
        title = html.escape(self.title)
        return f'<div role="group" aria-label="{title}" style="color:inherit">{"".join(parts)}</div>'

    def __repr__(self) -> str:
        lines = [f"{heading}: {as_text(content)}" for heading, content in self.states]
        return "\n".join([self.title, *lines])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = self.widget._repr_mimebundle_() if self.widget is not None else {}
        return dict(bundle) | {"text/html": self.twin(), "text/plain": repr(self)}


class Explorer(Twinned):
    """A control and what it shows. `choose(name)` sets the control; `shown` is the HTML on display."""

    def __init__(
        self,
        choices: Mapping[str, Any],
        render: Callable[[Any], Content],
        label: str,
        start: str,
        twin: Sequence[str],
        control: str,
    ) -> None:
        self.choices, self.render, self.label, self.chosen = choices, render, label, start
        self.rendered: dict[str, str] = {}
        self.shown = self.rendering(start)
        widget = None if ipywidgets is None else self.make_widget(control)
        super().__init__(label, [(f"{label}: {name}", self.rendering(name)) for name in twin], widget)

    def rendering(self, name: str) -> str:
        """The HTML for one choice, rendered once."""
        if name not in self.rendered:
            self.rendered[name] = as_html(self.render(self.choices[name]))
        return self.rendered[name]

    def choose(self, name: str) -> None:
        """Show the choice called `name`, and set every control to it."""
        if name not in self.choices:
            raise ValueError(f"{self.label} has no choice {name!r}: choose from {list(self.choices)}")
        self.chosen, self.shown = name, self.rendering(name)
        if self.widget is not None:
            self.output.value = self.shown
            for set_control in self.setters:
                set_control(name)

    def make_widget(self, control: str) -> Any:
        names = list(self.choices)
        self.output = ipywidgets.HTML(value=self.shown)
        pick = ipywidgets.ToggleButtons if control == "buttons" else ipywidgets.Dropdown
        chooser = pick(options=names, value=self.chosen, description=self.label, style=WHOLE_LABEL)
        chooser.observe(lambda change: self.choose(change["new"]), "value")
        self.controls, self.setters = [chooser], [lambda name: setattr(chooser, "value", name)]
        if control == "slider":
            last = len(names) - 1
            slider = ipywidgets.IntSlider(names.index(self.chosen), 0, last, description=self.label)
            slider.readout = False  # a bare number: the dropdown beside it names the choice
            slider.style, chooser.description = WHOLE_LABEL, "or choose"
            slider.observe(lambda change: self.choose(names[change["new"]]), "value")
            self.controls.insert(0, slider)
            self.setters.append(lambda name: setattr(slider, "value", names.index(name)))
        return ipywidgets.VBox([ipywidgets.HBox(self.controls), self.output])


def explorer(
    choices: Sequence[Any] | Mapping[str, Any],
    render: Callable[[Any], Content],
    *,
    label: str,
    start: Any = None,
    twin: Sequence[Any] | None = None,
    control: str = "dropdown",
) -> Explorer:
    """A control over `choices` and, below it, what `render` makes of the chosen one.

    `choices` are values, shown by their text, or a mapping from names to values. `render(value)` returns
    HTML, a Picture, or (figure, alt); it is called once for each value. `start` is the choice shown first,
    `twin` the choices that the static twin lays out: by default the first, the middle one and the last. Give
    both as values of a sequence, as names of a mapping. `control` is "dropdown", "buttons", or "slider": a
    slider with a dropdown beside it, since a slider's handle has no name for a screen reader.
    """
    if control not in CONTROLS:
        raise ValueError(f"control is {control!r}: choose from {CONTROLS}")
    named = dict(choices) if isinstance(choices, Mapping) else {str(value): value for value in choices}
    if len(named) < 2:
        raise ValueError(f"{label} has {len(named)} choices: an explorer needs at least two different ones")
    names = list(named)
    first = names[0] if start is None else str(start)
    some = names if len(names) <= MOST_STATES_IN_TWIN else [names[0], names[len(names) // 2], names[-1]]
    shown = some if twin is None else [str(value) for value in twin]
    for name in [first, *shown]:
        if name not in named:
            raise ValueError(f"{label} has no choice {name!r}: choose from {names}")
    return Explorer(named, render, label, first, shown, control)


class Stepper(Twinned):
    """Frames one at a time, with the buttons Back and Next. `go(i)` shows frame i; `at` is the one shown."""

    def __init__(self, frames: Sequence[str], captions: Sequence[str], label: str) -> None:
        self.frames, self.at = list(frames), 0
        self.headings = [f"{i} of {len(frames)}: {text}" for i, text in enumerate(captions, 1)]
        widget = None if ipywidgets is None else self.make_widget()
        super().__init__(label, list(zip(self.headings, self.frames, strict=True)), widget)

    def go(self, at: int) -> None:
        """Show frame `at`, or the nearest that exists."""
        self.at = min(max(at, 0), len(self.frames) - 1)
        if self.widget is not None:
            self.output.value = self.page()
            self.back.disabled, self.next.disabled = self.at == 0, self.at == len(self.frames) - 1

    def page(self) -> str:
        heading = html.escape(self.headings[self.at])
        return f'<p style="margin:0.2em 0"><strong>{heading}</strong></p>{self.frames[self.at]}'

    def make_widget(self) -> Any:
        self.output = ipywidgets.HTML(value=self.page())
        self.back = ipywidgets.Button(description="Back", tooltip="the step before", disabled=True)
        self.next = ipywidgets.Button(description="Next", tooltip="the step after")
        self.back.on_click(lambda button: self.go(self.at - 1))
        self.next.on_click(lambda button: self.go(self.at + 1))
        return ipywidgets.VBox([ipywidgets.HBox([self.back, self.next]), self.output])


def stepper(frames: Sequence[Content], captions: Sequence[str], *, label: str = "Step by step") -> Stepper:
    """Frames to step through, each with its caption; the static twin lays all of them out in order.

    A frame is HTML, a Picture, or (figure, alt), drawn once when this is called.
    """
    if len(frames) < 2 or len(frames) != len(captions):
        raise ValueError(f"{len(frames)} frames and {len(captions)} captions: give two frames or more, a caption each")
    return Stepper([as_html(frame) for frame in frames], captions, label)
