"""A lesson and its solved twin: the same cells in the same order, except those tagged `exercise`."""

from __future__ import annotations

import re
from pathlib import Path

from nbformat import NotebookNode

from gptoss_lab.course.notebooks import (
    FOLDER,
    SOLUTIONS,
    NotebookError,
    canonical,
    exercise_id,
    lesson_of,
    read,
    tags,
    twin_of,
    write,
)

STUB = "raise NotImplementedError"


def pair_problems(lesson: Path) -> list[str]:
    """Where `lesson` and its solved twin differ outside the exercise cells, and stubs in the wrong place."""
    if not twin_of(lesson).is_file():
        return [f"no solved twin {twin_of(lesson)}: run gptoss-lab sync"]
    ours, theirs = read(lesson), read(twin_of(lesson))
    problems = []
    for number, (a, b) in enumerate(zip(ours.cells, theirs.cells, strict=False)):
        if _outside_exercise(a) != _outside_exercise(b):
            problems.append(f"cell {number} and the solved twin's differ: {_short(a)!r} and {_short(b)!r}")
            break
    else:
        if len(ours.cells) != len(theirs.cells):
            problems.append(f"{len(ours.cells)} cells, the solved twin has {len(theirs.cells)}")
    problems += [
        f"exercise {exercise_id(cell)} holds no `{STUB}`: an exercise is a STUB in the lesson"
        for cell in ours.cells
        if exercise_id(cell) is not None and STUB not in cell.source
    ]
    problems += [
        f"exercise {exercise_id(cell)} is not solved in the twin"
        for cell in theirs.cells
        if exercise_id(cell) is not None and STUB in cell.source
    ]
    return problems


def _outside_exercise(cell: NotebookNode) -> tuple[object, ...]:
    source = cell.source.rstrip() if exercise_id(cell) is None else exercise_id(cell)
    return cell.cell_type, sorted(tags(cell)), source


def _short(cell: NotebookNode) -> str:
    lines = cell.source.strip().splitlines() or [""]
    return re.sub(r"(?s)^(.{50}).+", r"\1…", lines[0])


def sync(lesson: Path) -> list[str]:
    """Copy the lesson to its solved twin, all but the twin's exercise cells.

    Outputs of cells that stay as they are stay too. Returns the ids of the exercises still to solve. Raises
    NotebookError, and changes nothing, if the twin solves an exercise that the lesson no longer asks.
    """
    twin = twin_of(lesson)
    old = read(twin).cells if twin.is_file() else []
    solved = {exercise_id(cell): cell for cell in old if exercise_id(cell)}
    recorded = {(cell.get("id"), cell.source): cell for cell in old if cell.cell_type == "code"}
    notebook, unsolved = canonical(read(lesson)), []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        name = exercise_id(cell)
        if name is not None and name in solved:
            cell.source = solved[name].source
        elif name is not None:
            unsolved.append(name)
        before = recorded.get((cell.id, cell.source), {})
        cell.outputs, cell.execution_count = before.get("outputs", []), before.get("execution_count")
    lost = sorted(set(solved) - {exercise_id(cell) for cell in notebook.cells})
    if lost:
        raise NotebookError(f"{twin} solves {', '.join(lost)}, which {lesson} does not ask: rename or delete it first")
    write(twin, notebook)
    return unsolved


def orphans(folder: Path = FOLDER) -> list[str]:
    """The notebooks in the folder of solved twins that are no lesson's twin."""
    twins = sorted((folder / SOLUTIONS).glob("*.ipynb"))
    return [f"{twin}: no lesson {lesson_of(twin)}" for twin in twins if not lesson_of(twin).is_file()]
