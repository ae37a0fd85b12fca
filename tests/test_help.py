"""Every message that help.md and docs/ci.md quote exists, and so does every command, file and heading."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer

from gptoss_lab.cli import app

ROOT = Path(__file__).resolve().parents[1]
HELP, CI = ROOT / "notebooks" / "help.md", ROOT / "docs" / "ci.md"
SOURCES = [*sorted((ROOT / "gptoss_lab").rglob("*.py")), *sorted((ROOT / "scripts").glob("*.py"))]
LEAST_LITERAL = 4  # characters of a message that stand in the source as they are


def code_spans(text: str) -> list[str]:
    """The code spans of a line of Markdown, also those that hold backticks."""
    return [match[2].strip() for match in re.finditer(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", text)]


def headings(page: Path) -> list[str]:
    return re.findall(r"^#{2,3} (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def quoted(page: Path) -> list[str]:
    """The messages in the headings of a page."""
    return [span for heading in headings(page) for span in code_spans(heading)]


def rendered(node: ast.AST) -> Iterator[str]:
    """The texts in a syntax tree, with … in the place of each value of an f-string."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from rendered(child)


@cache
def messages() -> frozenset[str]:
    """Every text of the package and of the set-up."""
    return frozenset(text for path in SOURCES for text in rendered(ast.parse(path.read_text(encoding="utf-8"))))


def exists(quote: str) -> bool:
    """Whether a message of the code contains `quote`, or is `quote` once its values are filled in."""
    if any(quote in message for message in messages()):
        return True
    for message in messages():
        literal = "".join(message.split()).replace("…", "")
        pattern = re.escape(message).replace("…", ".+")
        if len(literal) >= LEAST_LITERAL and "…" in message and re.fullmatch(pattern, quote):
            return True
    return False


# ---- what others say, provoked here


def no_module() -> str:
    command = [sys.executable, "-I", "-S", "-c", "import gptoss_lab"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def no_name() -> str:
    try:
        eval("checkpoint", {})
    except NameError as error:
        return f"{type(error).__name__}: {error}".replace("'checkpoint'", "…")
    raise AssertionError("a name without a value was found")


def infinity_minus_infinity() -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.subtract(np.float32("-inf"), np.float32("-inf"))
    return f"{caught[0].category.__name__}: {caught[0].message}"


def jupyterlab_says() -> str:
    static = Path(sys.prefix, "share", "jupyter", "lab", "static")
    found = [path.read_text(encoding="utf-8") for path in static.glob("jlab_core.*.js")]
    assert found, f"no JupyterLab in {static}"
    return "\n".join(found).replace("%1", "…")


def nbval_says() -> str:
    import nbval.plugin

    return Path(nbval.plugin.__file__).read_text(encoding="utf-8").replace("%s", "…")


def a_stub() -> str:
    return NotImplementedError.__name__


FOREIGN = {
    "No module named 'gptoss_lab'": no_module,
    "NameError: name … is not defined": no_name,
    "RuntimeWarning: invalid value encountered in subtract": infinity_minus_infinity,
    "The kernel for … appears to have died. It will restart automatically.": jupyterlab_says,
    "NotImplementedError": a_stub,
    "!!!!!": lambda: "!!!!!",  # held by lesson 10's recorded output
    "Cell outputs differ": nbval_says,
    "Cell execution caused an exception": nbval_says,
    "Unexpected output fields from running code: …": nbval_says,
}
PAGES = [HELP, CI]
MENUS = re.compile(r"\*([A-Z][^*\n]+)\*")


@pytest.mark.parametrize("quote", [q for page in PAGES for q in quoted(page) if q not in FOREIGN])
def test_a_quoted_message_is_one_that_the_course_prints(quote):
    assert exists(quote)


@pytest.mark.parametrize("quote", FOREIGN)
def test_a_message_of_another_program_is_what_it_says(quote):
    assert quote in quoted(HELP) + quoted(CI)
    assert quote in FOREIGN[quote]()


@pytest.mark.parametrize(
    "invented",
    ["not attempted yet: please write", "the limit is far too small", "3 of 4 checkers failed: yours", "so … and …"],
)
def test_an_invented_message_is_found_out(invented):
    assert not exists(invented)


def test_the_menus_are_those_of_jupyterlab():
    named = {name.rstrip("…") for name in MENUS.findall(HELP.read_text(encoding="utf-8"))}
    assert named
    says = jupyterlab_says()
    # JupyterLab puts the kind of document into some of its names.
    assert [name for name in sorted(named) if name not in says and name.replace("Notebook", "…") not in says] == []


def test_each_message_has_one_entry():
    quotes = quoted(HELP)
    assert len(quotes) > 40
    assert len(quotes) == len(set(quotes))


def test_each_kind_of_line_of_a_checker_has_an_entry():
    starts = ("not attempted", "✗ …", "✗ cost", "also failing", "printed", "It returned", "Only")
    assert [start for start in starts if not any(quote.startswith(start) for quote in quoted(HELP))] == []


def test_the_contents_lead_to_every_section():
    text = HELP.read_text(encoding="utf-8")
    linked = re.findall(r"^- \[(.+)\]\(#(.+)\)$", text, re.MULTILINE)
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [name for name, _ in linked] == sections
    anchors = [re.sub(r"[^a-z0-9 -]", "", name.lower()).replace(" ", "-") for name in sections]
    assert [anchor for _, anchor in linked] == anchors


def test_every_entry_says_something():
    text = HELP.read_text(encoding="utf-8")
    bodies = re.split(r"^### .+$", re.sub(r"^## .+$", "", text, flags=re.MULTILINE), flags=re.MULTILINE)[1:]
    assert bodies and all(len(body.split()) >= 5 for body in bodies)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\((?!#|https?://)([^)#]+)", page.read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    commands = set(typer.main.get_command(app).commands)
    called = set(re.findall(r"(?<![\w/-])make ([a-z][a-z-]*)", "\n".join(commands_in(text))))
    asked = set(re.findall(r"gptoss-lab ([a-z]+)", "\n".join(commands_in(text))))
    assert called and called <= targets
    assert asked and asked <= commands


def commands_in(markdown: str) -> list[str]:
    """Code blocks, and the code spans outside headings."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return blocks + code_spans(re.sub(r"^#.*$", "", rest, flags=re.MULTILINE))
