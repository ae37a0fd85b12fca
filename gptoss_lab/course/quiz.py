"""Questions with an explanation for every choice, as a widget and as text.

    from gptoss_lab.course import quiz

    quiz.ask(
        "When is the view read?",
        {
            "before the next `yield`": "Then its bytes are still there.",
            "after the last one": "By then the buffer has been filled again.",
        },
        answer="before the next `yield`",
    )

Several questions share one cell as `quiz.ask_all([quiz.Question(...), ...])`. Backticks set code. The widget
is a list of radio buttons, and what they say about a choice comes below it. The static twin opens each choice
with a click and needs neither a kernel nor a script.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gptoss_lab.course.widgets import Twinned, ipywidgets

RIGHT, WRONG = "✓ Right.", "✗ No."
UNANSWERED = "<p>Choose one: each choice is explained.</p>"


@dataclass(frozen=True)
class Question:
    """A question, its `choices` with an explanation each, and which of them is the answer."""

    text: str
    choices: Mapping[str, str]
    answer: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("a question needs a text")
        if len(self.choices) < 2:
            raise ValueError(f"{self.text!r} has {len(self.choices)} choices: give two or more")
        if self.answer not in self.choices:
            raise ValueError(f"{self.text!r}: the answer {self.answer!r} is no choice of {list(self.choices)}")
        bare = [choice for choice, why in self.choices.items() if not choice.strip() or not why.strip()]
        if bare:
            raise ValueError(f"{self.text!r}: explain the choice {bare[0]!r}")

    def explain(self, choice: str) -> str:
        """What is said about `choice`, as HTML: right or not, and why."""
        verdict = RIGHT if choice == self.answer else WRONG
        return f"<strong>{verdict}</strong> {as_code(self.choices[choice])}"

    def twin(self) -> str:
        """Every choice, its explanation one click away, as HTML."""
        items = [
            f"<li><details><summary>{as_code(choice)}</summary>{self.explain(choice)}</details></li>"
            for choice in self.choices
        ]
        return f'<ul style="list-style:none;padding-left:0.5em">{"".join(items)}</ul>'


class Quiz(Twinned):
    """One question or more. `choose(i, choice)` answers question i, counted from 0; `said[i]` is what it shows."""

    def __init__(self, questions: Sequence[Question], title: str) -> None:
        if not questions:
            raise ValueError("a quiz without a question: give at least one")
        self.questions = list(questions)
        self.said = [UNANSWERED] * len(questions)
        widget = None if ipywidgets is None else self.make_widget()
        headings = [question.text for question in questions]
        super().__init__(title, list(zip(headings, [question.twin() for question in questions], strict=True)), widget)

    def choose(self, number: int, choice: str) -> None:
        """Answer a question, and let its radio buttons follow."""
        question = self.questions[number]
        if choice not in question.choices:
            raise ValueError(f"{question.text!r} has no choice {choice!r}: choose from {list(question.choices)}")
        self.said[number] = f'<p role="status">{question.explain(choice)}</p>'
        if self.widget is not None:
            self.outputs[number].value = self.said[number]
            self.radios[number].index = list(question.choices).index(choice)

    def make_widget(self) -> Any:
        self.radios, self.outputs, rows = [], [], []
        for number, question in enumerate(self.questions):
            radio, output = self.make_radio(number, question), ipywidgets.HTML(value=UNANSWERED)
            self.radios.append(radio)
            self.outputs.append(output)
            rows += [ipywidgets.HTML(value=f"<strong>{as_code(question.text)}</strong>"), radio, output]
        return ipywidgets.VBox(rows)

    def make_radio(self, number: int, question: Question) -> Any:
        choices = list(question.choices)
        # Labels of radio buttons are plain text. None is chosen, so that none looks like the answer.
        options = [(choice.replace("`", ""), choice) for choice in choices]
        radio = ipywidgets.RadioButtons(options=options, value=None, layout={"width": "max-content"})
        radio.observe(lambda change: self.choose(number, change["new"]), "value")
        return radio

    def twin(self) -> str:
        """The questions one below another; headings may hold code, which the base class would escape."""
        parts = [f"<p><strong>{as_code(heading)}</strong></p>{content}" for heading, content in self.states]
        title = html.escape(self.title)
        return f'<div role="group" aria-label="{title}" style="color:inherit">{"".join(parts)}</div>'

    def __repr__(self) -> str:
        lines = [self.title]
        for question in self.questions:
            lines.append(question.text)
            for choice, why in question.choices.items():
                lines.append(f"  - {choice}: {RIGHT if choice == question.answer else WRONG} {why}")
        return "\n".join(lines)


def ask(question: str, choices: Mapping[str, str], answer: str) -> Quiz:
    """One question; `choices` maps each choice to its explanation, `answer` is the right one."""
    return Quiz([Question(question, choices, answer)], "Check yourself")


def ask_all(questions: Sequence[Question], title: str = "Check yourself") -> Quiz:
    """Several questions below one another, in one cell."""
    return Quiz(questions, title)


def as_code(text: str) -> str:
    """`text` as HTML, with what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
