"""The syllabi's minutes are the lessons', their sums are right, and WORKSHOP.md quotes what is there."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import typer

from gptoss_lab.cli import app
from gptoss_lab.course import lint, notebooks

ROOT = Path(__file__).resolve().parents[1]
WORKSHOP = ROOT / "WORKSHOP.md"
SYLLABI = {path.stem: path for path in sorted((ROOT / "notebooks" / "syllabi").glob("*.md"))}
TOTALS = {"90-minutes": 90, "half-day": 240, "full-day": 480}
HOME = "00__start_here.ipynb"
WHOLE, READING = "reading and exercises", "reading only"
LONGEST_WITHOUT_A_BREAK = 120  # minutes
PAUSES = ("Break", "Lunch")


@dataclass(frozen=True)
class Row:
    """A line of a syllabus: when it begins, how long it takes, and the lesson, if it is one."""

    begins: int
    minutes: int
    what: str
    how: str

    @property
    def link(self) -> tuple[str, str] | None:
        found = re.fullmatch(r"\[(.+)\]\((.+)\)", self.what)
        return (found[1], found[2]) if found else None


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def rows(name: str) -> list[Row]:
    """The lines of the one table with times in a syllabus."""
    found = re.findall(r"^\| (\d+):(\d\d) \| (\d+) \| (.+?) \|(.*)\|$", text_of(SYLLABI[name]), re.MULTILINE)
    lines = [line for line in text_of(SYLLABI[name]).splitlines() if line.startswith("|")]
    assert len(found) == len(lines) - 2, "a line of the table cannot be read"
    return [Row(60 * int(h) + int(m), int(long), what, how.strip()) for h, m, long, what, how in found]


def lessons(name: str) -> list[tuple[Row, Path]]:
    return [(row, SYLLABI[name].parent / row.link[1]) for row in rows(name) if row.link]


@cache
def minutes(path: Path) -> dict[str, int]:
    found = lint.minutes(notebooks.read(path))
    assert found, f"{path.name} names no minutes"
    return found


# ---- the syllabi


def test_there_are_three():
    assert set(SYLLABI) == set(TOTALS)
    linked = re.findall(r"\(notebooks/syllabi/(.+)\.md\)", text_of(WORKSHOP))
    assert linked == list(TOTALS)


@pytest.mark.parametrize("name", TOTALS)
def test_the_minutes_add_up(name):
    begins = 0
    for row in rows(name):
        assert row.begins == begins, f"{row.what} begins at another minute"
        begins += row.minutes
    (total,) = re.findall(r"\*\*Total:\*\* (\d+) minutes", text_of(SYLLABI[name]))
    assert begins == int(total) == TOTALS[name]


@pytest.mark.parametrize("name", TOTALS)
def test_a_lesson_takes_the_minutes_that_it_names_itself(name):
    assert lessons(name)
    for row, path in lessons(name):
        assert row.how in (WHOLE, READING)
        named = minutes(path)
        assert row.minutes == named["reading"] + (named["exercises"] if row.how == WHOLE else 0), path.name


@pytest.mark.parametrize("name", TOTALS)
def test_a_lesson_has_its_own_title_and_stands_there_once(name):
    assert [row.link[0] for row, _ in lessons(name)] == [lint.title(notebooks.read(path)) for _, path in lessons(name)]
    assert len({path for _, path in lessons(name)}) == len(lessons(name))


@pytest.mark.parametrize("name", TOTALS)
def test_a_lesson_comes_after_those_that_it_needs(name):
    done = {HOME}
    for _, path in lessons(name):
        opening = notebooks.read(path).cells[0].source
        (needs,) = re.findall(r"\*\*You need:\*\*(.+)", opening)
        needed = re.findall(r"\(([^)]+\.ipynb)\)", re.split(r"[^.]*\bhelps\b", needs)[0])
        assert set(needed) <= done, path.name
        done.add(path.name)


@pytest.mark.parametrize("name", TOTALS)
def test_nobody_sits_for_too_long(name):
    since = 0
    for row in rows(name):
        if row.what in PAUSES:
            since = row.begins + row.minutes
        assert row.begins + row.minutes - since <= LONGEST_WITHOUT_A_BREAK


@pytest.mark.parametrize("name", TOTALS)
def test_what_is_skipped_saves_what_it_says(name):
    text = text_of(SYLLABI[name])
    late = text[text.index("## When you are late") : text.index("## Debrief")]
    in_table = {path.name: row for row, path in lessons(name)}
    saved = re.findall(r"\]\(\.\./([^)]+)\) reading only saves (\d+) minutes", late)
    assert saved
    for lesson, gain in saved:
        assert in_table[lesson].how == WHOLE
        assert int(gain) == minutes(ROOT / "notebooks" / lesson)["exercises"]
    for after, gain in re.findall(r"The discussion after lesson (\d\d) saves (\d+) minutes", late):
        place = [path.name[:2] if row.link else "" for row, path in with_paths(name)].index(after)
        assert rows(name)[place + 1].what.startswith("Discuss") and rows(name)[place + 1].minutes == int(gain)
    for before, gain in re.findall(r"The break before lesson (\d\d) saves (\d+) minutes", late):
        place = [path.name[:2] if row.link else "" for row, path in with_paths(name)].index(before)
        assert rows(name)[place - 1].what == "Break" and rows(name)[place - 1].minutes == int(gain)
    assert len(re.findall(r"\bsaves\b", late)) == len(re.findall(r"\bsaves \d+ minutes", late))


def with_paths(name: str) -> list[tuple[Row, Path]]:
    return [(row, Path(row.link[1]) if row.link else Path()) for row in rows(name)]


@pytest.mark.parametrize("name", TOTALS)
def test_a_clock_time_in_the_prose_lies_inside_its_lesson(name):
    """`Lesson 16 ... at 2:30`: the minute is one of lesson 16."""
    text = text_of(SYLLABI[name])
    stops = text[text.index("## Where to stop") : text.index("## When you are late")]
    for line in stops.splitlines():
        for hours, mins in re.findall(r"\b(\d):(\d\d)\b", line):
            at, lesson = 60 * int(hours) + int(mins), re.search(r"Lesson (\d\d)", line)[1]
            (row,) = [row for row, path in lessons(name) if path.name.startswith(lesson)]
            assert row.begins < at < row.begins + row.minutes


@pytest.mark.parametrize("name", TOTALS)
def test_every_lesson_of_a_syllabus_has_its_place_to_stop(name):
    text = text_of(SYLLABI[name])
    stops = text[text.index("## Where to stop") : text.index("## When you are late")]
    assert set(re.findall(r"^- Lesson (\d\d)", stops, re.MULTILINE)) == {path.name[:2] for _, path in lessons(name)}


# ---- the notes of each lesson


def sections() -> dict[str, str]:
    """The notes on each lesson, by the lesson's file name."""
    text = text_of(WORKSHOP)
    text = text[text.index("## Lesson by lesson") : text.index("## When you are late")]
    parts = re.split(r"^### \[(.+)\]\(notebooks/(.+)\)$", text, flags=re.MULTILINE)[1:]
    for title, name in zip(parts[::3], parts[1::3], strict=True):
        assert title == lint.title(notebooks.read(ROOT / "notebooks" / name)), name
    return dict(zip(parts[1::3], parts[2::3], strict=True))


def wrong_answers() -> list[tuple[str, str, str, str]]:
    """(lesson, exercise, name of the wrong answer, what the checker says) of every line."""
    found = []
    for lesson, text in sections().items():
        lines = [line for line in text.splitlines() if line.startswith("|")][2:]
        for line in lines:
            match = re.fullmatch(r"\| ([\d.]+) \| \*\*(.+?)\*\*: .+ \| `(.+?)` \| .+ \|", line)
            assert match, f"{lesson}: cannot read {line}"
            found.append((lesson, *match.groups()))
    return found


@cache
def module_of(lesson: str) -> ModuleType:
    """The tests of a lesson's checkers, with their tables of wrong answers."""
    path = ROOT / "tests" / "course" / "lessons" / f"test_lesson_{lesson[:2]}.py"
    spec = importlib.util.spec_from_file_location(f"workshop_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_lesson_of_a_syllabus_has_notes_and_so_has_the_homework():
    used = {path.name for name in TOTALS for _, path in lessons(name)}
    assert used | {HOME} == set(sections())


def test_the_notes_say_where_to_stop_what_to_ask_and_what_to_skip():
    for lesson, text in sections().items():
        if lesson != HOME:
            assert "**Stop**" in text and "**If late**" in text, lesson
            assert len(re.findall(r"^- \*.+\?\*", text, re.MULTILINE)) >= 2, lesson


def test_every_exercise_has_wrong_answers():
    named = {(lesson, exercise) for lesson, exercise, _, _ in wrong_answers()}
    exercises = {
        (lesson, notebooks.exercise_id(cell))
        for lesson in sections()
        for cell in notebooks.read(ROOT / "notebooks" / lesson).cells
        if notebooks.exercise_id(cell)
    }
    assert named == exercises


@pytest.mark.parametrize(
    ("lesson", "exercise", "label", "says"), wrong_answers(), ids=lambda value: value.split("__")[0]
)
def test_the_checker_says_that_of_this_wrong_answer(lesson, exercise, label, says):
    (table,) = [table for checker, table in module_of(lesson).WRONG.items() if checker.exercise == exercise]
    (checker,) = [checker for checker in module_of(lesson).WRONG if checker.exercise == exercise]
    assert label in table
    verdict = checker.verdict(table[label][0])
    assert not verdict.passed and says in str(verdict)


# ---- what both name


@pytest.mark.parametrize("path", [WORKSHOP, *SYLLABI.values()], ids=lambda path: path.name)
def test_links_lead_to_files(path):
    targets = re.findall(r"\]\((?!https?://)([^)#]+)\)", text_of(path))
    assert targets
    assert [target for target in targets if not (path.parent / target).is_file()] == []


def test_commands_exist():
    text = text_of(WORKSHOP)
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    asked = set(re.findall(r"gptoss-lab ([a-z]+)", text))
    assert asked and asked <= set(typer.main.get_command(app).commands)


def test_places_in_a_lesson_exist():
    """What a note sets in italics with a capital, behind *at*, *before* or *after*, is in the lesson's prose."""
    for lesson, text in sections().items():
        cells = notebooks.read(ROOT / "notebooks" / lesson).cells
        prose = "\n".join(cell.source for cell in cells)
        for place in re.findall(r"\b(?:at|before|after|opens) \*([A-Z][^*]+)\*", text):
            assert place in prose, f"{lesson} has no {place!r}"
