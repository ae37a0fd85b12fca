"""The form of a lesson: its title part, its cells, its exercises, its pictures, its end."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from gptoss_lab.course import notebooks, twins
from gptoss_lab.course.notebooks import exercise_id, tags

CODE_CELLS, CODE_CELLS_AT_MOST = 25, 28
LINES, LINES_AT_MOST = 15, 20
TAGS = {"exercise", "nbval-ignore-output", "raises-exception", "summary"}
FILE_NAME = re.compile(r"\d\d__[a-z0-9]+(_[a-z0-9]+)*\.ipynb")
TIME = "**Time:** 10 minutes of reading, 15 of exercises."
QUIZ_CALL = re.compile(r"^(quiz_\d\d)\.questions\(\)", re.MULTILINE)
QUIZZES = "gptoss_lab.course.lessons"
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)


def title(notebook: NotebookNode) -> str:
    """The text of the notebook's first heading of level one, empty if it has none."""
    found = re.search(r"^# +(.+?)\s*$", _prose(notebook), re.MULTILINE)
    return found[1] if found else ""


def minutes(notebook: NotebookNode) -> dict[str, int] | None:
    """The minutes of reading and of exercises that the lesson's title part names, None if it names none.

    The line reads `**Time:** 10 minutes of reading, 15 of exercises.`
    """
    line = re.search(r"\*\*time\b.*", _opening(notebook), re.IGNORECASE)
    found = {kind: re.search(rf"(\d+)\D*?\b{kind}", line[0]) if line else None for kind in ("reading", "exercises")}
    if not found["reading"]:
        return None
    return {kind: int(match[1]) if match else 0 for kind, match in found.items()}


def course_problems(lessons: Sequence[Path]) -> list[str]:
    """All that is wrong with `lessons`, their format, their form and their solved twins, a line each."""
    problems = []
    for lesson in lessons:
        for path in notebooks.with_twins([lesson]):
            problems += [f"{path}: {problem}" for problem in notebooks.format_problems(path)]
        problems += [f"{lesson}: {problem}" for problem in lesson_problems(lesson) + twins.pair_problems(lesson)]
    return problems


def lesson_problems(path: Path) -> list[str]:
    """What keeps the notebook at `path` from being a lesson of this course."""
    notebook = notebooks.read(path)
    problems = []
    if not FILE_NAME.fullmatch(path.name):
        problems.append(f"file name {path.name}: name it NN__snake_case.ipynb")
    problems += _title_problems(notebook)
    problems += _opening_problems(notebook)
    problems += _size_problems(notebook)
    problems += _tag_problems(notebook)
    problems += _exercise_problems(path, notebook)
    problems += _picture_problems(notebook)
    problems += _link_problems(path, notebook)
    problems += _end_problems(notebook)
    return problems


def advice(path: Path) -> list[str]:
    """What the design asks for and nothing enforces: sizes over the aim but under the limit."""
    notebook = notebooks.read(path)
    code = _code(notebook)
    notes = []
    if CODE_CELLS < len(code) <= CODE_CELLS_AT_MOST:
        notes.append(f"{len(code)} code cells: aim for {CODE_CELLS}")
    for number, cell in code:
        lines = len(cell.source.splitlines())
        if LINES < lines <= LINES_AT_MOST:
            notes.append(f"cell {number}: {lines} lines: aim for {LINES}")
    return notes


def _code(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    return [(number, cell) for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def _prose(notebook: NotebookNode) -> str:
    """All markdown, without what stands in fences."""
    return "\n\n".join(FENCE.sub("", cell.source) for cell in notebook.cells if cell.cell_type == "markdown")


def _opening(notebook: NotebookNode) -> str:
    """The markdown before the first code cell."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            break
        cells.append(cell.source)
    return "\n\n".join(cells)


def _title_problems(notebook: NotebookNode) -> list[str]:
    titles = re.findall(r"^# +(.+?)\s*$", _prose(notebook), re.MULTILINE)
    if len(titles) != 1 or not notebook.cells[0].source.startswith("# "):
        return [f"{len(titles)} headings of level one: a lesson starts with its title and has no other"]
    if re.match(r"(lesson\s+)?\d", titles[0], re.IGNORECASE):
        return [f"title {titles[0]!r} repeats a number: the file name has it"]
    return []


def _opening_problems(notebook: NotebookNode) -> list[str]:
    opening = _opening(notebook)
    words = ("You will do", "You will learn", "You need")
    problems = [
        f"no **{word}** before the first code cell"
        for word in words
        if not re.search(rf"\*\*{word}\b[^*\n]*\*\*", opening, re.IGNORECASE)
    ]
    if minutes(notebook) is None:
        problems.append(f"no minutes before the first code cell: write `{TIME}`")
    return problems


def _size_problems(notebook: NotebookNode) -> list[str]:
    code = _code(notebook)
    problems = []
    if not code:
        problems.append("no code cell")
    if len(code) > CODE_CELLS_AT_MOST:
        problems.append(f"{len(code)} code cells: {CODE_CELLS_AT_MOST} at most, {CODE_CELLS} is the aim")
    for number, cell in code:
        lines = len(cell.source.splitlines())
        if lines > LINES_AT_MOST:
            problems.append(f"cell {number}: {lines} lines: {LINES_AT_MOST} at most, {LINES} is the aim")
    return problems


def _tag_problems(notebook: NotebookNode) -> list[str]:
    code = _code(notebook)
    problems = [
        f"cell {number}: unknown tag {tag!r}: use one of {', '.join(sorted(TAGS))}"
        for number, cell in enumerate(notebook.cells)
        for tag in tags(cell)
        if tag not in TAGS
    ]
    if code and "nbval-ignore-output" not in tags(code[0][1]):
        problems.append(f"cell {code[0][0]}: the setup cell prints versions: tag it nbval-ignore-output")
    summaries = [(number, cell) for number, cell in code if "summary" in tags(cell)]
    if len(summaries) != 1:
        problems.append(f"{len(summaries)} cells tagged summary: tag the one that prints what the lesson showed")
    for number, cell in summaries:
        lines = "".join(output.get("text", "") for output in cell.outputs).strip().splitlines()
        if cell.execution_count and not 1 <= len(lines) <= 2:
            problems.append(f"cell {number}: the summary prints {len(lines)} lines: print one or two")
    return problems


def _exercise_problems(path: Path, notebook: NotebookNode) -> list[str]:
    problems, seen = [], set()
    lesson = path.name[:2].removeprefix("0")
    for number, cell in enumerate(notebook.cells):
        name = exercise_id(cell)
        if name is None:
            if "exercise" in cell.metadata.get("gptoss_lab", {}):
                problems.append(f"cell {number}: has an exercise id and no exercise tag")
            continue
        if cell.cell_type != "code":
            problems.append(f"cell {number}: an exercise is a code cell")
        if not re.fullmatch(rf"{re.escape(lesson)}\.[1-9]\d*", name):
            problems.append(f"cell {number}: exercise id {name!r}: write {lesson}.1, {lesson}.2, ...")
        if name in seen:
            problems.append(f"cell {number}: exercise id {name!r} used twice")
        seen.add(name)
        following = notebook.cells[number + 1 : number + 2]
        if not following or following[0].cell_type != "code" or exercise_id(following[0]) is not None:
            problems.append(f"cell {number}: the cell after an exercise calls its checker")
    return problems


def _picture_problems(notebook: NotebookNode) -> list[str]:
    problems = []
    for number, cell in enumerate(notebook.cells):
        shown = [output.get("data", {}) for output in cell.get("outputs", [])]
        texts = ["".join(data.get("text/html", "")) for data in shown]
        if cell.cell_type == "markdown":
            texts.append(FENCE.sub("", cell.source))
        if any(re.search(r"!\[\s*\]\(", text) for text in texts):
            problems.append(f"cell {number}: a picture without alt text: say what it shows in ![...]")
        images = [image for text in texts for image in re.findall(r"<img\b[^>]*>", text)]
        if any(not re.search(r"""\balt\s*=\s*("[^"]+"|'[^']+')""", image) for image in images):
            problems.append(f"cell {number}: an <img> without alt text")
        if any("image/png" in data and "text/html" not in data for data in shown):
            problems.append(f"cell {number}: a figure without alt text: show it with gptoss_lab.course.figures.show")
    return problems


def _link_problems(path: Path, notebook: NotebookNode) -> list[str]:
    """Links to files that are not there."""
    targets = re.findall(r"\]\(<?([^)\s>]+)", _prose(notebook))
    files = [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    return [f"links to {file}, which is not there" for file in files if not (path.parent / file).exists()]


def _end_problems(notebook: NotebookNode) -> list[str]:
    """The recap, the questions after it, further reading; a heading may be a line in bold."""
    recap, reading = r"(recap|what you can (now )?do( now)?)", r"further reading"
    begin = re.compile(rf"^(?:##+ +|\*\*){recap}\b", re.MULTILINE | re.IGNORECASE)
    texts = [FENCE.sub("", cell.source) if cell.cell_type == "markdown" else "" for cell in notebook.cells]
    last = max((number for number, text in enumerate(texts) if begin.search(text)), default=None)
    if last is None:
        return ["no heading 'What you can do now'"]
    end = "\n\n".join([begin.split(texts[last])[-1], *texts[last + 1 :]])
    calls = [
        name for cell in notebook.cells[last:] if cell.cell_type == "code" for name in QUIZ_CALL.findall(cell.source)
    ]
    problems = [f"{name}.questions() is called, and {QUIZZES} has none" for name in calls if _questions(name) is None]
    if end.lower().count("<details") + sum(_questions(name) or 0 for name in calls) < 3:
        problems.append("fewer than three questions after the recap: ask them in a quiz cell, quiz_NN.questions()")
    if not re.search(rf"^(##+ +|\*\*){reading}\b", end, re.MULTILINE | re.IGNORECASE):
        problems.append("no 'Further reading' after the recap")
    return problems


def _questions(name: str) -> int | None:
    """How many questions the quiz of this name asks, None if there is no such quiz."""
    try:
        return len(importlib.import_module(f"{QUIZZES}.{name}").questions().questions)
    except (ModuleNotFoundError, AttributeError):
        return None
