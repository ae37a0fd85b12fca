"""What notebooks have recorded: storing it, and finding what nbval would let pass in silence."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from gptoss_lab.course import notebooks
from gptoss_lab.course.runner import ANSI, Result

NOT_REPRODUCIBLE = re.compile(r"clear_output|display_id|update_display|%%writefile|%%?timeit\b|%%?time\b")
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/\\])(/(?:home|Users|root|tmp|usr|opt|var|mnt|work\w*|data)/[^\s\"'<>\\]*)")
ALLOWED_PATH = re.compile(r"/tmp/ipykernel_\d+/")


# --- store


def store(result: Result) -> str:
    """Store the outputs of an execution in its notebook. Returns why it was left untouched, if it was."""
    if result.failure:
        return result.failure
    for number, cell in enumerate(result.notebook.cells):
        for output in cell.get("outputs", []):
            if notebooks.WIDGET_VIEW in output.get("data", {}):
                return f"cell {number} shows a widget without a static twin (text/html)"
            if output.output_type == "error":
                output.traceback = [_without_paths(line, result.path) for line in output.traceback]
    notebooks.write(result.path, result.notebook)
    return ""


def _without_paths(text: str, notebook: Path) -> str:
    """`text` with the folders of this machine taken out of a traceback's file names."""
    root = re.escape(str(notebook.resolve().parent))
    text = re.sub(rf"{root}/|{re.escape(os.getcwd())}/", "", text)
    text = re.sub(r"/[^\s\x1b]*/site-packages/", "site-packages/", text)
    text = re.sub(rf"{re.escape(sys.base_prefix)}/lib/", "lib/", text)
    return re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "cell", text)


# --- lint


def record_problems(path: Path) -> list[str]:
    """What the notebook at `path` recorded that nbval lets pass, or that cannot come out twice the same."""
    code = [(n, cell) for n, cell in enumerate(notebooks.read(path).cells) if cell.cell_type == "code"]
    if not code:
        return ["no code cell: nothing would be tested"]
    problems = []
    counts = [cell.get("execution_count") for _, cell in code if cell.source.strip()]
    if counts != list(range(1, len(counts) + 1)):
        problems.append(f"execution counts are {counts}, not 1..{len(counts)}: run gptoss-lab record")
    for number, cell in code:
        problems += [f"cell {number}: {problem}" for problem in _cell_problems(cell)]
    return problems


def _cell_problems(cell: NotebookNode) -> list[str]:
    source, outputs, tags = cell.source, cell.get("outputs", []), notebooks.tags(cell)
    errors = [output for output in outputs if output.output_type == "error"]
    text = ANSI.sub("", "\n".join(texts(outputs)))
    problems = []
    if errors and "raises-exception" not in tags:
        problems.append(f"records {errors[0].ename} and has no raises-exception tag")
    if "raises-exception" in tags and not errors:
        problems.append("is tagged raises-exception and records no error")
    if re.search(r"UsageError|ModuleNotFoundError", text):
        problems.append("records a UsageError or ModuleNotFoundError: the rest of the cell never ran")
    if "nbval-skip" in tags or re.search(r"^\s*#\s*(NBVAL_|PYTEST_VALIDATE)\w+\s*$", source, re.MULTILINE):
        problems.append("is kept from the gate: drop the nbval-skip tag or the NBVAL_ comment")
    if re.search(r";\s*(#.*)?$", source.rstrip().rsplit("\n", 1)[-1]):
        problems.append("ends with ';', which nbval does not honour: assign to _ instead")
    if NOT_REPRODUCIBLE.search(source) and "nbval-ignore-output" not in tags:
        problems.append(f"uses {NOT_REPRODUCIBLE.search(source)[0]}, whose output cannot come out twice the same")
    paths = [path for path in ABSOLUTE_PATH.findall(text) if not ALLOWED_PATH.match(path)]
    if paths:
        problems.append(f"records an absolute path, {paths[0]}: print the name or a relative path")
    if any(notebooks.WIDGET_VIEW in output.get("data", {}) for output in outputs):
        problems.append("records a widget: give it a static twin (text/html), then run gptoss-lab record")
    return problems


def texts(outputs: Sequence[NotebookNode]) -> list[str]:
    """Everything textual in `outputs`."""
    texts = []
    for output in outputs:
        texts += [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
        texts += [value for kind, value in output.get("data", {}).items() if isinstance(value, str) and "text/" in kind]
    return texts


def sanitiser_problems(path: Path) -> list[str]:
    """What is wrong with a file of nbval's sanitiser, which ignores what it cannot read."""
    problems, waiting = [], None
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], start=1):
        if waiting is not None and not line.startswith("replace: "):
            problems.append(f"line {number - 1}: a regex without `replace: ` on the next line")
        if line.startswith("replace: ") and waiting is not None:
            problems += [f"line {number}: {problem}" for problem in _entry_problems(waiting, line[len("replace: ") :])]
        elif not re.match(r"regex: .|\[.+\]$|#|$", line):
            problems.append(f"line {number}: neither [name], `regex: ` nor `replace: `: {line}")
        waiting = line[len("regex: ") :] if line.startswith("regex: ") else None
    return problems


def _entry_problems(regex: str, replacement: str) -> list[str]:
    try:
        compiled = re.compile(regex)
        compiled.sub(replacement, "")
    except (re.error, IndexError) as error:
        return [f"{regex!r} to {replacement!r}: {error}"]
    return [f"{regex!r} matches nothing at all, so it matches everywhere"] if compiled.match("") else []
