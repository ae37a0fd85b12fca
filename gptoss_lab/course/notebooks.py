"""The notebooks of the course: where they lie and what form their files have.

Lessons are `notebooks/NN__name.ipynb`; the solved twin of each is `notebooks/solutions/NN__name.ipynb`.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

FOLDER = Path("notebooks")
SOLUTIONS = "solutions"
MINE = ".mine-"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_METADATA = {"gptoss_lab", "jupyter", "tags"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class NotebookError(Exception):
    """A notebook or a name that the course cannot work with. The message is one line for the reader."""


# --- finding, reading, writing


def find_lessons(folder: Path = FOLDER) -> list[Path]:
    """The lessons of `folder`, in reading order. Raises NotebookError if there is none.

    What `gptoss-lab reset` kept of a learner's, `NN__name.mine-1.ipynb`, is no lesson.
    """
    found = (path for path in folder.glob("*.ipynb") if not path.name.startswith("."))
    lessons = sorted(path for path in found if MINE not in path.name)
    if not lessons:
        raise NotebookError(f"no notebook in {folder}/: run this in the course's own folder")
    return lessons


def twin_of(lesson: Path) -> Path:
    """Where the solved twin of `lesson` lies."""
    return lesson.parent / SOLUTIONS / lesson.name


def lesson_of(path: Path) -> Path:
    """The lesson that the notebook at `path` belongs to: itself, or the one whose solved twin it is."""
    return path.parent.parent / path.name if path.parent.name == SOLUTIONS else path


def with_twins(lessons: Sequence[Path]) -> list[Path]:
    """Each lesson, followed by its solved twin where there is one."""
    return [path for lesson in lessons for path in (lesson, twin_of(lesson)) if path == lesson or path.is_file()]


def choose(names: Sequence[str], folder: Path = FOLDER) -> list[Path]:
    """The notebooks that `names` pick, all lessons if there are none.

    A name is a number (`10`), a lesson's name (`10__every_answer_is_bang`) or the path of any notebook.
    Raises NotebookError for a name that picks nothing.
    """
    if not names:
        return find_lessons(folder)
    chosen: list[Path] = []
    for name in names:
        if name.endswith(".ipynb") and Path(name).is_file():
            found = [Path(name)]
        else:
            stem = Path(name).stem
            found = [path for path in find_lessons(folder) if path.stem == stem or path.stem.startswith(f"{stem}__")]
        if not found:
            known = ", ".join(path.stem for path in find_lessons(folder))
            raise NotebookError(f"no lesson {name!r}: choose from {known}")
        chosen += [path for path in found if path not in chosen]
    return chosen


def choose_lessons(names: Sequence[str], folder: Path = FOLDER) -> list[Path]:
    """Like `choose`, with the lesson in the place of its solved twin."""
    return list(dict.fromkeys(lesson_of(path) for path in choose(names, folder)))


def read(path: Path) -> NotebookNode:
    """The notebook as it stands on disk: nothing added, nothing mended."""
    try:
        notebook = nbformat.v4.reads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise NotebookError(f"{path}: not a readable notebook: {error}") from error
    if notebook.get("nbformat") != 4 or "cells" not in notebook:
        raise NotebookError(f"{path}: nbformat {notebook.get('nbformat')}: save it as nbformat 4")
    for number, cell in enumerate(notebook.cells):
        if not {"cell_type", "metadata", "source"} <= set(cell):
            raise NotebookError(f"{path}: cell {number} has no cell_type, metadata or source: it is no notebook cell")
    return notebook


def write_beside(path: Path, text: str) -> None:
    """Write `text` to a file beside `path` and rename it, so that `path` is never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write(path: Path, notebook: NotebookNode) -> None:
    """Write `notebook` in the course's format."""
    write_beside(path, dumps(notebook))


# --- format


def dumps(notebook: NotebookNode) -> str:
    """The text of `notebook` in the course's format: sorted keys, indent 1, a newline at the end."""
    return nbformat.v4.writes(canonical(notebook)).rstrip("\n") + "\n"


def canonical(notebook: NotebookNode) -> NotebookNode:
    """A copy with what the course keeps: version 4.5, cell ids, a short list of metadata, no empty cells."""
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    own = {key: value for key, value in notebook.metadata.items() if key == "gptoss_lab"}
    notebook.metadata = nbformat.from_dict({**METADATA, **own})
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip()]
    used: set[str] = set()
    for cell in notebook.cells:
        cell.source = cell.source.rstrip()
        cell.metadata = nbformat.from_dict(_cell_metadata(cell))
        cell.id = _cell_id(cell, used)
        for output in cell.get("outputs", []):
            # A widget dies with its kernel: its stored view shows an error, its static twin does not.
            if "text/html" in output.get("data", {}):
                output.data.pop(WIDGET_VIEW, None)
    return notebook


def _cell_metadata(cell: NotebookNode) -> dict[str, Any]:
    kept = {key: value for key, value in cell.metadata.items() if key in CELL_METADATA and value}
    if "tags" in kept:
        kept["tags"] = sorted(set(kept["tags"]))
    return kept


def _cell_id(cell: NotebookNode, used: set[str]) -> str:
    """The cell's own id, or one made from its source, so that mending a file twice gives the same file."""
    name = cell.get("id") or hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
    unique, n = name, 1
    while unique in used:
        n += 1
        unique = f"{name}-{n}"
    used.add(unique)
    return unique


def format_problems(path: Path) -> list[str]:
    """What keeps the file at `path` from the course's format. `fix` mends all of it."""
    notebook = read(path)
    if path.read_text(encoding="utf-8") == dumps(notebook):
        return []
    problems = []
    if (notebook.nbformat, notebook.nbformat_minor) != (4, 5):
        problems.append(f"nbformat {notebook.nbformat}.{notebook.nbformat_minor}, not 4.5")
    for key in sorted(set(notebook.metadata) | set(METADATA)):
        if key != "gptoss_lab" and notebook.metadata.get(key) != METADATA.get(key):
            problems.append(f"metadata {key!r} is not the course's")
    seen: set[str] = set()
    for number, cell in enumerate(notebook.cells):
        extra = sorted(set(cell.metadata) - CELL_METADATA)
        if not cell.source.strip():
            problems.append(f"cell {number}: empty")
        if not cell.get("id") or cell.id in seen:
            problems.append(f"cell {number}: {'id ' + repr(cell.id) + ' used twice' if cell.get('id') else 'no id'}")
        if extra:
            problems.append(f"cell {number}: metadata {', '.join(extra)} not kept")
        seen.add(cell.get("id", ""))
    return [f"{problem}: run gptoss-lab fix" for problem in problems or ["not in the canonical form"]]


def fix(path: Path) -> bool:
    """Bring the file at `path` into the course's format. Returns whether it changed."""
    text = dumps(read(path))
    if path.read_text(encoding="utf-8") == text:
        return False
    write_beside(path, text)
    return True


# --- cells


def tags(cell: NotebookNode) -> list[str]:
    """The cell's tags."""
    return list(cell.metadata.get("tags", []))


def exercise_id(cell: NotebookNode) -> str | None:
    """The id of an exercise cell (`"10.1"`; empty if it has none), None for any other cell."""
    if "exercise" not in tags(cell):
        return None
    return str(cell.metadata.get("gptoss_lab", {}).get("exercise", ""))
