"""The map of the course: a table made from the lessons themselves."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.notebooks import exercise_id, find_lessons, read

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
    count = sum(exercise_id(cell) is not None for cell in notebook.cells)
    return Entry(path, title, count, reading, exercises)


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
            title = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(entry.title, quote=False))
            link = f'<a href="{entry.path.name}">{title}</a>'
            cells = (entry.part, link, entry.exercises, entry.reading_minutes, entry.exercise_minutes)
            rows.append("<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>")
        heads = ("part", "lesson", "exercises", "minutes of reading", "of exercises")
        head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in heads)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def course_map(folder: Path = ROOT / "notebooks") -> CourseMap:
    """Read every lesson in `folder`, in reading order."""
    return CourseMap([read_entry(path) for path in find_lessons(folder)])
