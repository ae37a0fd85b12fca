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
TOTALS = {"90-minutes": 90, "half-day": 240, "full-day": 480, "two-days": 985}
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
    def links(self) -> list[tuple[str, str]]:
        """Title and target of the lesson, of each one where the room has a choice, `[a](..) or [b](..)`."""
        found = [re.fullmatch(r"\[(.+?)\]\((.+?)\)", part) for part in self.what.split(" or ")]
        return [(link[1], link[2]) for link in found] if all(found) else []


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def days(name: str) -> list[list[Row]]:
    """The tables with times of a syllabus, one a day."""
    tables = re.findall(r"^\| from \|.*\n\|[-|]+\n((?:\|.*\n)+)", text_of(SYLLABI[name]), re.MULTILINE)
    found = []
    for table in tables:
        lines = re.findall(r"^\| (\d+):(\d\d) \| (\d+) \| (.+?) \|(.*)\|$", table, re.MULTILINE)
        assert len(lines) == len(table.splitlines()), "a line of the table cannot be read"
        found.append([Row(60 * int(h) + int(m), int(long), what, how.strip()) for h, m, long, what, how in lines])
    assert sum(len(day) + 2 for day in found) == len(re.findall(r"^\|", text_of(SYLLABI[name]), re.MULTILINE))
    return found


def rows(name: str) -> list[Row]:
    return [row for day in days(name) for row in day]


def lessons(name: str) -> list[tuple[Row, Path]]:
    return [(row, SYLLABI[name].parent / target) for row in rows(name) for _, target in row.links]


def part(name: str, heading: str) -> str:
    """What stands below a heading of a syllabus, up to the next one."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text_of(SYLLABI[name]), re.MULTILINE | re.DOTALL)
    return text


def at_home(name: str) -> set[str]:
    """The lessons that a syllabus names as homework."""
    return set(re.findall(r"\]\(\.\./([^)]+\.ipynb)\)", part(name, "At home")))


@cache
def minutes(path: Path) -> dict[str, int]:
    found = lint.minutes(notebooks.read(path))
    assert found, f"{path.name} names no minutes"
    return found


# ---- the syllabi


def test_the_page_links_every_syllabus():
    assert set(SYLLABI) == set(TOTALS)
    linked = re.findall(r"\(notebooks/syllabi/(.+)\.md\)", text_of(WORKSHOP))
    assert linked == list(TOTALS)


@pytest.mark.parametrize("name", TOTALS)
def test_the_minutes_add_up(name):
    ends = []
    for day in days(name):
        begins = 0
        for row in day:
            assert row.begins == begins, f"{row.what} begins at another minute"
            begins += row.minutes
        ends.append(begins)
    ((total, each),) = re.findall(r"\*\*Total:\*\* (\d+) minutes(.*?)\. \*\*", text_of(SYLLABI[name]))
    assert sum(ends) == int(total) == TOTALS[name]
    assert len(ends) == 1 or list(map(int, re.findall(r"\d+", each))) == ends


@pytest.mark.parametrize("name", TOTALS)
def test_a_lesson_takes_the_minutes_that_it_names_itself(name):
    assert lessons(name)
    takes: dict[Row, list[int]] = {}
    for row, path in lessons(name):
        assert row.how in (WHOLE, READING)
        named = minutes(path)
        takes.setdefault(row, []).append(named["reading"] + (named["exercises"] if row.how == WHOLE else 0))
    for row, choices in takes.items():
        assert row.minutes == max(choices), row.what


@pytest.mark.parametrize("name", TOTALS)
def test_a_lesson_has_its_own_title_and_stands_there_once(name):
    titles = [title for row in rows(name) for title, _ in row.links]
    assert titles == [lint.title(notebooks.read(path)) for _, path in lessons(name)]
    assert len({path for _, path in lessons(name)}) == len(lessons(name))


@pytest.mark.parametrize("name", TOTALS)
def test_a_lesson_comes_after_those_that_it_needs(name):
    done = {HOME}
    for row in rows(name):
        here = [SYLLABI[name].parent / target for _, target in row.links]
        for path in here:
            opening = notebooks.read(path).cells[0].source
            (needs,) = re.findall(r"\*\*You need:\*\*(.+)", opening)
            needed = re.findall(r"\(([^)]+\.ipynb)\)", re.split(r"[^.]*\bhelps\b", needs)[0])
            assert set(needed) <= done, path.name
        done |= {path.name for path in here}


@pytest.mark.parametrize("name", TOTALS)
def test_nobody_sits_for_too_long(name):
    for day in days(name):
        since = 0
        for row in day:
            if row.what in PAUSES:
                since = row.begins + row.minutes
            assert row.begins + row.minutes - since <= LONGEST_WITHOUT_A_BREAK


@pytest.mark.parametrize("name", TOTALS)
def test_what_is_skipped_saves_what_it_says(name):
    late = part(name, "When you are late")
    in_table = {path.name: row for row, path in lessons(name)}
    saved = re.findall(r"\]\(\.\./([^)]+)\) reading only saves (\d+) minutes", late)
    assert saved
    for lesson, gain in saved:
        assert in_table[lesson].how == WHOLE
        assert int(gain) == minutes(ROOT / "notebooks" / lesson)["exercises"]
    for after, gain in re.findall(r"The discussion after lesson (\d\d) saves (\d+) minutes", late):
        place = numbers(name).index(after)
        assert rows(name)[place + 1].what.startswith("Discuss") and rows(name)[place + 1].minutes == int(gain)
    for before, gain in re.findall(r"The break before lesson (\d\d) saves (\d+) minutes", late):
        place = numbers(name).index(before)
        assert rows(name)[place - 1].what == "Break" and rows(name)[place - 1].minutes == int(gain)
    for lesson, gain in re.findall(r"Lesson (\d\d) at home saves (\d+) minutes", late):
        assert rows(name)[numbers(name).index(lesson)].minutes == int(gain)
    assert len(re.findall(r"\bsaves\b", late)) == len(re.findall(r"\bsaves \d+ minutes", late))


def numbers(name: str) -> list[str]:
    """For each line the number of its lesson, empty if it has none."""
    return [Path(row.links[0][1]).name[:2] if row.links else "" for row in rows(name)]


@pytest.mark.parametrize("name", TOTALS)
def test_a_clock_time_in_the_prose_lies_inside_its_lesson(name):
    """`Lesson 16 ... at 2:30`: the minute is one of lesson 16."""
    stops = part(name, "Where to stop")
    for line in stops.splitlines():
        for hours, mins in re.findall(r"\b(\d):(\d\d)\b", line):
            at, lesson = 60 * int(hours) + int(mins), re.search(r"Lesson (\d\d)", line)[1]
            (row,) = [row for row, path in lessons(name) if path.name.startswith(lesson)]
            assert row.begins < at < row.begins + row.minutes


@pytest.mark.parametrize("name", TOTALS)
def test_every_lesson_of_a_syllabus_has_its_place_to_stop(name):
    stops = part(name, "Where to stop")
    assert set(re.findall(r"^- Lesson (\d\d)", stops, re.MULTILINE)) == {path.name[:2] for _, path in lessons(name)}


@pytest.mark.parametrize("name", TOTALS)
def test_what_a_syllabus_names_of_a_lesson_is_there(name):
    """What a line that begins with `Lesson 16` sets in italics with a capital is in that lesson's prose."""
    known = {path.name[:2]: path for path in notebooks.find_lessons(ROOT / "notebooks")}
    for number, line in re.findall(r"^(?:-|\d+\.) Lesson (\d\d)(.*)$", text_of(SYLLABI[name]), re.MULTILINE):
        prose = "\n".join(cell.source for cell in notebooks.read(known[number]).cells)
        for place in re.findall(r"\*([A-Z][^*]+)\*", line):
            assert place in prose, f"lesson {number} has no {place!r}"


@pytest.mark.parametrize("name", TOTALS)
def test_homework_is_what_was_not_done(name):
    """A lesson that the table has with its exercises, and that has hints, needs no evening."""
    done = {path.name for row, path in lessons(name) if row.how == WHOLE} - {"90__on_your_own.ipynb"}
    assert at_home(name) and not at_home(name) & done


def test_every_lesson_is_in_a_syllabus_or_is_homework():
    named = {path.name for name in TOTALS for _, path in lessons(name)}.union(*(at_home(name) for name in TOTALS))
    assert {path.name for path in notebooks.find_lessons(ROOT / "notebooks")} == named | {HOME}


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
    text = "\n".join(text_of(path) for path in (WORKSHOP, *SYLLABI.values()))
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    asked = set(re.findall(r"gptoss-lab ([a-z]+)", text))
    assert asked and asked <= set(typer.main.get_command(app).commands)


def test_the_message_asks_for_the_disk_that_the_set_up_asks_for():
    source = text_of(ROOT / "scripts" / "make_venv.py")
    (cpu, gpu) = re.search(r'^NEEDED_GIB = {"cpu": (\d+), "gpu": (\d+)}$', source, re.MULTILINE).groups()
    assert f"{cpu} GiB of free disk ({gpu} GiB with an NVIDIA GPU)" in text_of(WORKSHOP)


def test_places_in_a_lesson_exist():
    """What a note sets in italics with a capital, behind *at*, *before* or *after*, is in the lesson's prose."""
    for lesson, text in sections().items():
        cells = notebooks.read(ROOT / "notebooks" / lesson).cells
        prose = "\n".join(cell.source for cell in cells)
        for place in re.findall(r"\b(?:at|before|after|opens) \*([A-Z][^*]+)\*", text):
            assert place in prose, f"{lesson} has no {place!r}"
