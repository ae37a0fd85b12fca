"""The strict gate over any copy of the course, a learner's edited one too.

What a learner has written is told apart from what is broken. Each lesson of the copy is compared with the
published one, cell by cell. Cells that are the course's own run under the gate against the outputs that the
course recorded, whatever the copy has stored. Exercise cells may hold anything: the checker below says what
it is worth. Text cells are the learner's to write in, and code cells that were added are run and not compared.

This module is the gate's plugin too: it writes what came of each cell to the file of `--verify-log`.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from gptoss_lab.course import gate
from gptoss_lab.course.answers import published
from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.notebooks import FOLDER, NotebookError, exercise_id, find_lessons, read, tags, write
from gptoss_lab.course.recorded import texts

INTACT, BROKEN, WRONG_ANSWERS = 0, 1, 3
IGNORE = "nbval-ignore-output"
NOT_RUN = "Kernel dead on test start"
LONGEST = 160
MOST_FAILURES = 3


@dataclass
class Place:
    """A code cell of the copy: number `cell` in its notebook, and what it is in the published lesson.

    `exercise` is the id of the exercise that it answers or checks. `role` is "course", "exercise", "checker",
    "changed" or "added".
    """

    cell: int
    role: str
    exercise: str = ""


@dataclass
class Verdict:
    """What was found about one lesson. Answers are "right", "wrong: ..." or "not attempted", by exercise."""

    path: Path
    changed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    added: int = 0
    answers: dict[str, str] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        """Whether the lesson itself, not an answer, is changed or fails."""
        return bool(self.changed or self.failed)

    @property
    def wrong(self) -> list[str]:
        """The exercises with a wrong answer."""
        return [name for name, said in self.answers.items() if said.startswith("wrong")]

    def lines(self) -> list[str]:
        """The lesson's part of the report: one line, then one for each finding."""
        parts = [word for word, found in (("CHANGED", self.changed), ("FAILS", self.failed)) if found] or ["intact"]
        right = sum(said == "right" for said in self.answers.values())
        tried = sum(said != "not attempted" for said in self.answers.values())
        parts += [f"{right} of {tried} answers right"] if tried else []
        parts += [f"{len(self.answers) - tried} not attempted"] if tried < len(self.answers) else []
        parts += [f"{self.added} code cell{'s' * (self.added > 1)} added"] if self.added else []
        # What fails later often follows from what fails first.
        more = len(self.failed) - MOST_FAILURES
        failed = self.failed[:MOST_FAILURES] + ([f"{more} more cells fail"] if more > 0 else [])
        findings = self.changed + failed + [f"{name} {self.answers[name]}" for name in self.wrong]
        return [f"{self.path.stem:<28}{', '.join(parts)}", *(f"    {finding}" for finding in findings)]


# --- the copy beside the published lesson


def compare(copy: NotebookNode, ours: NotebookNode, verdict: Verdict) -> tuple[NotebookNode, list[Place]]:
    """What the gate has to run for a copy, and what each of its cells is. Notes changes in `verdict`."""
    wanted = {cell.id: cell for cell in ours.cells if cell.cell_type == "code"}
    order = list(wanted)
    checks = {
        after.id: exercise_id(cell)
        for cell, after in zip(ours.cells, ours.cells[1:], strict=False)
        if exercise_id(cell) is not None
    }
    cells, places, found = [], [], []
    for number, cell in enumerate(copy.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        own = match(cell, wanted, found)
        if own is None:
            places.append(Place(number, "added"))
        else:
            role = role_of(cell, own, checks)
            places.append(Place(number, role, exercise_id(own) or checks.get(own.id, "")))
            if role == "changed" or (found and order.index(own.id) < order.index(found[-1])):
                what = "was changed" if role == "changed" else "has another place"
                verdict.changed.append(f"cell {number} {what}: {first_line(cell.source)}")
            found.append(own.id)
        cells.append(to_run(cell, own, places[-1].role))
    verdict.changed += [f"a cell is gone: {first_line(wanted[name].source)}" for name in order if name not in found]
    verdict.added = sum(place.role == "added" for place in places)
    verdict.answers = {name: "wrong: its cells are gone" for name in checks.values() if name}
    return new_notebook(cells=cells), places


def match(cell: NotebookNode, wanted: dict[str, NotebookNode], found: list[str]) -> NotebookNode | None:
    """The published cell that `cell` is: the one of its source, or of its exercise, or of its id."""
    free = [own for own in wanted.values() if own.id not in found]
    name = exercise_id(cell)
    same = [own for own in free if own.source.rstrip() == cell.source.rstrip()]
    same += [own for own in free if name and name == exercise_id(own)]
    same += [own for own in free if own.id == cell.get("id")]
    return same[0] if same else None


def role_of(cell: NotebookNode, own: NotebookNode, checks: dict[str, str | None]) -> str:
    if exercise_id(own) is not None:
        return "exercise"
    if cell.source.rstrip() != own.source.rstrip():
        return "changed"
    return "checker" if own.id in checks else "course"


def to_run(cell: NotebookNode, own: NotebookNode | None, role: str) -> NotebookNode:
    """The cell for the gate: with the course's tags and outputs where it is the course's."""
    strict = role == "course"
    kept = {tag for tag in tags(cell if own is None else own) if tag in (IGNORE, "raises-exception")}
    metadata = {"tags": sorted(kept if strict else kept | {IGNORE})}
    outputs = own.outputs if strict else []
    return new_code_cell(cell.source, metadata=metadata, outputs=outputs, execution_count=1)


def first_line(text: str) -> str:
    line = (text.strip().splitlines() or [""])[0]
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


# --- running it


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the file that takes what came of each cell."""
    parser.addoption("--verify-log", help="Append a line of JSON for each notebook cell.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Generator[None, Any, Any]:
    """Write what a cell printed, and why it failed."""
    report = yield
    log = item.config.getoption("--verify-log")
    if log and type(item).__name__ == "IPyNbCell" and (call.when == "call" or report.failed):
        outputs = item.test_outputs or []  # type: ignore[attr-defined]
        raised = [f"{each.ename}: {each.evalue}" for each in outputs if each.output_type == "error"]
        said = {"cell": item.cell_num, "printed": "".join(texts(outputs)), "failed": ""}  # type: ignore[attr-defined]
        if report.failed and call.excinfo is not None:
            said["failed"] = (raised or [str(call.excinfo.value)])[0]
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")
    return report


def verify(path: Path, timeout: float = 120) -> Verdict | None:
    """Verify one lesson; None if the course has no lesson of that name. `timeout` is in seconds a cell."""
    try:
        ours = published(ROOT / FOLDER / path.name).notebook
    except NotebookError:
        return None
    verdict = Verdict(path)
    notebook, places = compare(read(path), ours, verdict)
    with tempfile.TemporaryDirectory() as folder:
        target, log = Path(folder, path.name), Path(folder, "log")
        write(target, notebook)
        command = gate.command_line([target], timeout, 1, gate.SANITISER)
        command[-1:-1] = ["-p", "gptoss_lab.course.verify", "--verify-log", str(log)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    judge(verdict, places, [json.loads(line) for line in lines])
    if len(lines) < len(places) or (done.returncode and not (verdict.failed or verdict.wrong)):
        said = (done.stdout + done.stderr).strip().splitlines()
        verdict.failed.append(f"the gate ended with status {done.returncode}: {(said or ['no word'])[-1]}")
    return verdict


def judge(verdict: Verdict, places: list[Place], said: list[dict[str, Any]]) -> None:
    """Sort what came of the cells into answers and failures of the lesson."""
    died = False
    for line in said:
        place, failed = places[line["cell"]], line["failed"]
        if failed == NOT_RUN and died:
            continue
        died = died or "the kernel died" in failed
        if place.role == "exercise":
            verdict.answers[place.exercise] = f"wrong: the cell fails: {first_line(failed)}" if failed else ""
        elif place.role == "checker":
            verdict.answers[place.exercise] = answer(place.exercise, line, verdict.answers[place.exercise])
        elif failed:
            verdict.failed.append(f"cell {place.cell} fails: {first_line(failed)}")
    for name, found in verdict.answers.items():
        verdict.answers[name] = found or "wrong: it was not checked"


def answer(exercise: str, line: dict[str, Any], before: str) -> str:
    """What the checker said. `before` is set if the exercise cell has failed, which the checker then follows."""
    if before or line["failed"]:
        return before or f"wrong: {first_line(line['failed'])}"
    report = re.search(rf"^{re.escape(exercise)}  (.*)$", line["printed"], re.MULTILINE)
    if report is None:
        return "wrong: the checker printed no report"
    if report[1].startswith("✓"):
        return "right"
    return "not attempted" if report[1].startswith("not attempted") else f"wrong: {first_line(report[1])}"


def main(path: Path, *, timeout: float = 120, jobs: int = 2) -> int:
    """Print a report on the lessons at `path`, a folder or one notebook. Returns one of the three statuses."""
    if path.is_dir():
        inside = path / FOLDER if (path / FOLDER).is_dir() else path
        lessons = find_lessons(inside)
    else:
        read(path)  # says what is wrong with it
        lessons = [path]
    verdicts = []
    with ThreadPoolExecutor(jobs) as pool:
        for lesson, verdict in zip(lessons, pool.map(partial(verify, timeout=timeout), lessons), strict=True):
            if verdict is None:
                print(f"{lesson.stem:<28}no lesson of this course, passed over", flush=True)
                continue
            verdicts.append(verdict)
            print("\n".join(verdict.lines()), flush=True)
    broken, wrong = sum(each.broken for each in verdicts), sum(len(each.wrong) for each in verdicts)
    print(f"{len(verdicts)} lessons: {broken} changed or failing, {wrong} wrong answers")
    if not verdicts:
        return BROKEN
    return BROKEN if broken else WRONG_ANSWERS if wrong else INTACT
