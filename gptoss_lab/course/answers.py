"""Bring a lesson back to what was published, and show solutions.

The published lesson is the newest version in git whose exercises are all stubs, so that an answer which the
learner committed is not taken for the course's. Where git has no such version (an unpacked archive, a copy) it
is made from the solved twin: the same cells and outputs, each exercise a stub again and its check not yet run.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.notebooks import (
    FOLDER,
    MINE,
    NotebookError,
    canonical,
    dumps,
    exercise_id,
    read,
    tags,
    twin_of,
    write_beside,
)
from gptoss_lab.course.twins import STUB

MOST_VERSIONS = 50
CALL = re.compile(r"\bcheck\.\w+\(\s*(\w+)")


@dataclass(frozen=True)
class Published:
    """A lesson as published: the text of its file, and in words where it comes from."""

    text: str
    origin: str

    @property
    def notebook(self) -> NotebookNode:
        """The lesson as a notebook."""
        return nbformat.v4.reads(self.text)


@dataclass(frozen=True)
class Reset:
    """What `reset` did: from where the lesson came, and where the learner's cells are kept, if any differed."""

    lesson: Path
    origin: str
    kept: Path | None


# --- what was published


def published(lesson: Path) -> Published:
    """The lesson as it was published. Raises NotebookError if neither git nor a solved twin has it."""
    places = list(dict.fromkeys([lesson, ROOT / FOLDER / lesson.name]))
    for place in places:
        for commit, text in versions(place):
            if all_stubs(text):
                return Published(text, f"git, commit {commit[:10]}")
    for place in places:
        if twin_of(place).is_file():
            return Published(dumps(unsolve(read(twin_of(place)))), "its solved twin")
    raise NotebookError(f"{lesson}: neither git nor solutions/ has it: unpack or clone the course again")


def versions(path: Path) -> Iterator[tuple[str, str]]:
    """Commits that touched the file at `path`, newest first, with its text in each; none outside git."""
    listed = git(path.parent, "log", f"-{MOST_VERSIONS}", "--format=%H", "--", path.name)
    for commit in (listed or "").split():
        text = git(path.parent, "show", f"{commit}:./{path.name}")
        if text is not None:
            yield commit, text


def git(folder: Path, *arguments: str) -> str | None:
    """What git prints in `folder`; None where it fails or is not there."""
    # A hook of git sets GIT_DIR and others, which would name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, env=environment, timeout=60, check=False
        )
        return done.stdout.decode("utf-8") if done.returncode == 0 else None
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return None


def all_stubs(text: str) -> bool:
    """Whether every exercise of the notebook in `text` is still to be written."""
    try:
        cells = nbformat.v4.reads(text).cells
    except (ValueError, KeyError, AttributeError):
        return False
    return all(STUB in cell.source for cell in cells if exercise_id(cell) is not None)


def unsolve(twin: NotebookNode) -> NotebookNode:
    """The lesson that belongs to a solved twin: stubs in its exercise cells, and nothing that they print."""
    notebook = canonical(twin)
    for cell, after in zip(notebook.cells, [*notebook.cells[1:], None], strict=True):
        if exercise_id(cell) is None:
            continue
        checked = CALL.search(after.source) if after is not None else None
        cell.source = stub(cell.source, checked[1] if checked else "")
        for each in (cell, after):
            if each is not None and each.cell_type == "code":
                each.outputs, each.execution_count = [], None
    return notebook


def stub(solution: str, name: str) -> str:
    """The imports of `solution` and the signature of its function `name`, whose body raises."""
    statements = ast.parse(solution).body
    lines = solution.splitlines()
    imports = [ast.unparse(each) for each in statements if isinstance(each, ast.Import | ast.ImportFrom)]
    head = f"def {name or 'answer'}(*args, **kwargs):"
    for each in statements:
        if isinstance(each, ast.FunctionDef) and each.name == name:
            first = min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)])
            signature = lines[first - 1 : each.body[0].lineno - 1]
            while signature and signature[-1].lstrip()[:1] in ("", "#"):  # a comment belongs to the answer
                signature.pop()
            head = "\n".join(signature) or head
    return "\n".join([*imports, *(["", ""] if imports else []), head, f"    {STUB}"])


# --- what the learner asks for


def reset(lesson: Path) -> Reset:
    """Write the published lesson over the one at `lesson`; cells of the learner's stay in a file beside it."""
    source = published(lesson)
    kept = None
    if lesson.is_file() and (not is_readable(lesson) or cells_of(read(lesson)) != cells_of(source.notebook)):
        kept = first_free(lesson)
        part = kept.with_name(f".{kept.name}.part")
        shutil.copyfile(lesson, part)
        part.replace(kept)
    write_beside(lesson, source.text)
    return Reset(lesson, source.origin, kept)


def first_free(lesson: Path) -> Path:
    """`NN__name.mine-1.ipynb` beside the lesson, or the next number that is free."""
    number = 1
    while (path := lesson.with_name(f"{lesson.stem}{MINE}{number}{lesson.suffix}")).exists():
        number += 1
    return path


def is_readable(lesson: Path) -> bool:
    """Whether the file is a notebook; a damaged one is kept as it is."""
    try:
        read(lesson)
    except NotebookError:
        return False
    return True


def cells_of(notebook: NotebookNode) -> list[tuple[str, str, list[str]]]:
    """What a learner can write: type, source and tags of each cell that is not empty."""
    cells = [cell for cell in notebook.cells if cell.source.strip()]
    return [(cell.cell_type, cell.source.rstrip(), sorted(tags(cell))) for cell in cells]


def solution(exercise: str, lessons: list[Path]) -> str:
    """The solution of `exercise` ("16.2") as code, from the solved twins of `lessons`. Raises NotebookError."""
    known = {}
    for lesson in lessons:
        if twin_of(lesson).is_file():
            cells = read(twin_of(lesson)).cells
            known |= {name: cell.source for cell in cells if (name := exercise_id(cell))}
    if exercise in known:
        return known[exercise]
    of_lesson = [name for name in known if name.split(".")[0] == exercise.split(".")[0]]
    raise NotebookError(f"no exercise {exercise!r}: choose from {', '.join(of_lesson or known) or 'none: no twins'}")
