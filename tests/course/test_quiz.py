"""Questions: the widget says why about each choice, and the twin says the same."""

from __future__ import annotations

import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from gptoss_lab.course import quiz
from gptoss_lab.course.runner import ThisEnvironment, kernel_environment
from gptoss_lab.course.widgets import as_text

CHOICES = {
    "before `yield`": "Its bytes are there: 1 < 2.",
    "at the end": "The buffer was filled again.",
    "never": "No.",
}
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def asked():
    return quiz.ask("When is `view` read?", CHOICES, answer="before `yield`")


def test_no_choice_is_made_at_first_and_each_one_is_explained(asked):
    assert asked.radios[0].value is None and "explained" in asked.outputs[0].value
    for choice, why in CHOICES.items():
        asked.radios[0].value = choice
        said = as_text(asked.outputs[0].value)
        assert why in said
        assert said.startswith("✓ Right.") == (choice == "before `yield`")
        assert said.startswith("✗ No.") == (choice != "before `yield`")


def test_choosing_in_code_moves_the_buttons(asked):
    asked.choose(0, "never")
    assert asked.radios[0].value == "never" and "✗" in asked.outputs[0].value
    with pytest.raises(ValueError, match="has no choice 'perhaps'"):
        asked.choose(0, "perhaps")


def test_labels_are_plain_and_html_has_code(asked):
    assert list(asked.radios[0].options)[0][0] == "before yield"
    shown = asked._repr_mimebundle_()["text/html"]
    assert "When is <code>view</code> read?" in shown and "<summary>before <code>yield</code></summary>" in shown
    assert "1 &lt; 2" in shown


def test_the_twin_and_the_text_explain_every_choice(asked):
    bundle = asked._repr_mimebundle_()
    assert bundle["text/html"].count("<details>") == len(CHOICES) and VIEW in bundle
    for choice, why in CHOICES.items():
        assert f"- {choice}: " in bundle["text/plain"] and why in bundle["text/plain"]
        assert why in as_text(bundle["text/html"])
    assert bundle["text/plain"].count(quiz.RIGHT) == bundle["text/html"].count(quiz.RIGHT) == 1


def test_several_questions_answer_apart():
    both = quiz.ask_all([quiz.Question("One?", CHOICES, "never"), quiz.Question("Two?", CHOICES, "at the end")])
    both.radios[1].value = "at the end"
    assert "✓" in both.outputs[1].value and "explained" in both.outputs[0].value
    assert both.twin().index("One?") < both.twin().index("Two?")


@pytest.mark.parametrize(
    ("question", "choices", "answer", "message"),
    [
        (" ", CHOICES, "never", "needs a text"),
        ("Why?", {"a": "x"}, "a", "two or more"),
        ("Why?", CHOICES, "perhaps", "is no choice"),
        ("Why?", {"a": "x", "b": " "}, "a", "explain the choice 'b'"),
    ],
)
def test_what_cannot_be_asked_is_refused(question, choices, answer, message):
    with pytest.raises(ValueError, match=message):
        quiz.ask(question, choices, answer)
    with pytest.raises(ValueError, match="at least one"):
        quiz.ask_all([])


def test_it_comes_out_the_same_twice_so_that_the_gate_can_compare_it():
    source = f"from gptoss_lab.course import quiz\nquiz.ask('When?', {CHOICES!r}, 'never')"
    shown = []
    for _ in range(2):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        NotebookClient(notebook, kernel_manager_class=ThisEnvironment).execute(env=kernel_environment())
        (output,) = notebook.cells[0].outputs
        shown.append({kind: text for kind, text in output.data.items() if kind != VIEW})
    assert shown[0] == shown[1] and {"text/html", "text/plain"} <= set(shown[0])


def test_without_ipywidgets_the_twin_is_left():
    program = "import sys; sys.modules['ipywidgets'] = None\n"
    program += f"from gptoss_lab.course import quiz; q = quiz.ask('When?', {CHOICES!r}, 'never')\n"
    program += "q.choose(0, 'never'); assert '✓' in q.said[0]; print(sorted(q._repr_mimebundle_()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['text/html', 'text/plain']"
