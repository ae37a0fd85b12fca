"""The map of the course and the learner's progress on it: tables made from the lessons themselves."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptoss_lab.course import journal
from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.lint import FILE_NAME
from gptoss_lab.course.notebooks import FOLDER, exercise_id, find_lessons, read

PARTS = {"0": "Start", "1": "1 · Borrowed weights", "2": "1 · Borrowed weights", "4": "2 · Redundant routing"}
PARTS |= {"5": "2 · Redundant routing", "6": "Beyond", "9": "Beyond"}
MINUTES = re.compile(r"\*\*Time:\*\* (\d+) minutes? of reading(?:, (\d+) of exercises)?")


@dataclass(frozen=True)
class Entry:
    """One lesson: where it lies, what it is called, and how long it takes."""

    path: Path
    title: str
    exercises: int
    reading_minutes: int
    exercise_minutes: int
    exercise_ids: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """The part of the course, from the first digit of the file's name."""
        return PARTS.get(self.path.name[0], "Beyond")


def read_entry(path: Path) -> Entry:
    """Read a lesson's title and minutes from its first cell."""
    notebook = read(path)
    first = notebook.cells[0].source
    title = first.splitlines()[0].removeprefix("# ")
    minutes = MINUTES.search(first)
    reading, exercises = (int(m or 0) for m in minutes.groups()) if minutes else (0, 0)
    ids = tuple(name for cell in notebook.cells if (name := exercise_id(cell)) is not None)
    return Entry(path, title, len(ids), reading, exercises, ids)


class CourseMap:
    """The lessons as a table, with links in a notebook and as lines in plain text."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries

    def __repr__(self) -> str:
        lines = []
        for entry in self.entries:
            minutes = f"{entry.reading_minutes} + {entry.exercise_minutes} min"
            lines.append(f"{entry.path.stem:<28}{minutes:<14}{entry.title}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.html()}

    def html(self) -> str:
        """A table with a link to each lesson."""
        rows = []
        for entry in self.entries:
            minutes = (entry.reading_minutes, entry.exercise_minutes)
            rows.append((entry.part, link_to(entry), entry.exercises, *minutes))
        return table(("part", "lesson", "exercises", "minutes of reading", "of exercises"), rows)


def link_to(entry: Entry) -> str:
    """The lesson's title as a link."""
    title = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(entry.title, quote=False))
    return f'<a href="{entry.path.name}">{title}</a>'


def table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in heads)
    lines = ("".join(f'<td style="text-align:left">{cell}</td>' for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def read_entries(folder: Path) -> list[Entry]:
    """Read every lesson in `folder`, in reading order. Notebooks that a learner put beside them are none."""
    return [read_entry(path) for path in find_lessons(folder) if FILE_NAME.fullmatch(path.name)]


def course_map(folder: Path = ROOT / "notebooks") -> CourseMap:
    """The map of the lessons in `folder`."""
    return CourseMap(read_entries(folder))


class CourseProgress:
    """Which exercises were passed and which one comes next. `passed` says when, by exercise; `note` ends it."""

    def __init__(self, entries: list[Entry], passed: Mapping[str, str], note: str = "") -> None:
        self.entries, self.passed, self.note = entries, passed, note
        self.exercises = [(name, entry) for entry in entries for name in entry.exercise_ids]

    @property
    def done(self) -> int:
        """How many exercises of these lessons were passed."""
        return sum(name in self.passed for name, _ in self.exercises)

    def next_step(self) -> tuple[str, Entry] | None:
        """The exercise to go on with: the next open one after the last that was passed, else the first open."""
        places = range(len(self.exercises))
        gone = [(self.passed[self.exercises[i][0]], i) for i in places if self.exercises[i][0] in self.passed]
        last = max(gone)[1] if gone else -1
        for i in [*places[last + 1 :], *places[: last + 1]]:
            if self.exercises[i][0] not in self.passed:
                return self.exercises[i]
        return None

    def summary(self) -> str:
        """How many are done, in words."""
        return f"{self.done} of {len(self.exercises)} exercises done"

    def marks(self, entry: Entry) -> str:
        """The lesson's exercises, a sign behind those that were passed."""
        return "  ".join(f"{name} ✓" if name in self.passed else name for name in entry.exercise_ids) or "none"

    def __repr__(self) -> str:
        lines = [f"{entry.path.stem:<28}{self.marks(entry)}" for entry in self.entries]
        step = self.next_step()
        after = f"next: exercise {step[0]} in {step[1].path.name}" if step else "next: nothing, every exercise is done"
        return "\n".join([*lines, "", self.summary(), after, *([self.note] if self.note else [])])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.html()}

    def html(self) -> str:
        """The same as a table with links, and the next step above it."""
        step = self.next_step()
        after = f"next: exercise {step[0]} in {link_to(step[1])}" if step else "every exercise is done"
        rows = [(link_to(entry), self.marks(entry).replace("  ", " · ")) for entry in self.entries]
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f"<p><strong>{self.summary()}</strong>; {after}</p>{table(('lesson', 'exercises'), rows)}{note}"


def course_folder() -> Path:
    """The notebooks below the current folder, the current folder if it holds lessons, or the course's own."""
    if FOLDER.is_dir():
        return FOLDER
    return Path() if any(Path().glob("[0-9][0-9]__*.ipynb")) else ROOT / "notebooks"


def course_progress(folder: Path | None = None) -> CourseProgress:
    """The progress that this machine has kept, over the lessons in `folder`."""
    entries = read_entries(folder or ROOT / "notebooks")
    file = journal.journal_file()
    if file is None:
        return CourseProgress(entries, {}, f"Progress is switched off here ({journal.SETTING}).")
    where = Path("~", file.relative_to(Path.home())) if file.is_relative_to(Path.home()) else file
    try:
        note = f"Kept in {where}, on this machine only. {journal.SETTING}=off keeps none."
        return CourseProgress(entries, journal.passed(file), note)
    except (journal.DamagedJournal, OSError):
        return CourseProgress(entries, {}, f"{where} cannot be read. The next pass keeps it aside and starts anew.")
