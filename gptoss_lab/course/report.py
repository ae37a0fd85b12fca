"""The course as pages to read: one HTML page a lesson, an index, and `course.json`.

The pages hold all that they show, so that a browser asks no other host for anything.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from gptoss_lab.course import lint, notebooks
from gptoss_lab.course.runner import Result

LISTING = "course.json"

# A page runs no script: it shows the static twin of a widget, not the widget.
SHOWN = ["text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/latex", "text/plain"]

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --soft: #f3f4f6; --line: #c8ccd2;
        --link: #00558c; --fault: #a33a00; }
body { color: var(--ink); background: var(--paper); font: 16px/1.55 system-ui, sans-serif; margin: 0; }
main { max-width: 54rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
a { color: var(--link); }
pre { overflow-x: auto; font: 14px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; margin: 0; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 0.9em; }
.input, .text_cell_render pre { background: var(--soft); padding: 0.6rem 0.8rem; }
.input, .text_cell_render pre { border-left: 3px solid var(--line); }
.output { padding: 0.3rem 0.8rem 0.8rem; overflow-x: auto; }
.code_cell { margin: 1rem 0; }
.output_stderr, .output_error, .failed { border-left: 3px solid var(--fault); padding-left: 0.6rem; }
table { border-collapse: collapse; margin: 0.8rem 0; }
th, td { border: 1px solid var(--line); padding: 0.25rem 0.6rem; text-align: left; vertical-align: top; }
img, svg { max-width: 100%; height: auto; }
details { border: 1px solid var(--line); padding: 0.4rem 0.8rem; margin: 0.6rem 0; }
.number { text-align: right; }
@media (prefers-color-scheme: dark) {
:root { --ink: #e6e6e6; --paper: #16181c; --soft: #20242a; --line: #4a515b;
        --link: #7cc4f4; --fault: #ff9d66; }
DARK
}
"""


def write_report(results: Sequence[Result], out: Path) -> None:
    """Write a page for each result, `index.html` and `course.json` to `out`, each file whole or not at all.

    Pages that an earlier report there listed and this one does not hold are removed.
    """
    pages = {f"{result.path.stem}.html": page(result, results) for result in results}
    for name, text in pages.items():
        notebooks.write_beside(out / name, text)
    for name in set(_listed(out)) - set(pages):
        (out / name).unlink(missing_ok=True)
    entries = [entry(result) for result in results]
    notebooks.write_beside(out / LISTING, json.dumps({"lessons": entries}, indent=1, ensure_ascii=False) + "\n")
    notebooks.write_beside(out / "index.html", index(entries))


def _listed(out: Path) -> list[str]:
    """The pages of the report that lies in `out`, none if there is no report that can be read."""
    try:
        lessons = json.loads((out / LISTING).read_text(encoding="utf-8"))["lessons"]
        return [name for lesson in lessons if (name := Path(lesson["page"]).name).endswith(".html")]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def entry(result: Result) -> dict[str, Any]:
    """What `course.json` says of one lesson: `seconds` to execute it, `minutes` for a reader."""
    return {
        "name": result.path.stem,
        "page": f"{result.path.stem}.html",
        "title": lint.title(result.notebook),
        "minutes": lint.minutes(result.notebook),
        "cells": result.cells,
        "seconds": round(result.seconds, 1),
        "status": "ok" if result.ok else "failed",
        "failure": result.failure,
        "shows": result.shows,
    }


def page(result: Result, results: Sequence[Result]) -> str:
    """The lesson as one self-contained HTML page."""
    exporter = HTMLExporter(
        template_name="basic",
        config=Config(NbConvertBase={"display_data_priority": SHOWN}),
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
        embed_images=True,
    )
    resources = {"metadata": {"path": str(result.path.parent)}}
    body, _ = exporter.from_notebook_node(result.notebook, resources=resources)
    names = "|".join(re.escape(other.path.stem) for other in results)
    body = re.sub(rf'href="({names})\.ipynb', r'href="\1.html', body)
    failed = ""
    if not result.ok:
        failed = f'<p class="failed">Cell {result.failed_cell} failed: {html.escape(result.failure)}</p>\n'
    top = '<nav><a href="index.html">All lessons</a></nav>\n'
    return _page(lint.title(result.notebook) or result.path.stem, top + failed + body)


def index(entries: Sequence[dict[str, Any]]) -> str:
    """The page that lists the lessons, with what each one showed."""
    rows = "\n".join(
        f'<tr><td><a href="{html.escape(each["page"])}">{html.escape(each["title"] or each["name"])}</a></td>'
        f'<td class="number">{_total(each["minutes"])}</td><td class="number">{each["seconds"]:.1f}</td>'
        f"<td>{html.escape(each['failure'] or 'ok')}</td>"
        f"<td>{'<br>'.join(html.escape(line) for line in each['shows'])}</td></tr>"
        for each in entries
    )
    titles = ("Lesson", "Minutes to read and do", "Seconds to run", "Run", "It showed")
    head = "<tr>" + "".join(f"<th>{each}</th>" for each in titles) + "</tr>"
    return _page("gptoss-lab", f"<h1>gptoss-lab</h1>\n<table>\n{head}\n{rows}\n</table>")


def _total(minutes: dict[str, int] | None) -> str:
    return str(sum(minutes.values())) if minutes else ""


def _page(title: str, body: str) -> str:
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    plain = "\n.highlight, .highlight pre { background: none; }"  # the box around the code has the colour
    style = f"{light}{plain}\n{STYLE.replace('DARK', dark + plain)}"
    return PAGE.format(title=html.escape(title), style=style, body=body)
