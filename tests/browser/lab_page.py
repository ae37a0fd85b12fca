"""One notebook in a real browser: run it, read its cells, move its controls, picture it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab_server import Lab
from playwright.sync_api import Page

OPEN_SECONDS = 60
RUN_SECONDS = 180
WIDTH, PICTURE_HEIGHT = 1280, 2000
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}

# Parts of the only console errors that are no fault of a lesson.
TOLERATED: tuple[str, ...] = ()

PANEL = "const panel = window.jupyterapp.shell.currentWidget; const cells = panel.content.widgets;"


class LessonPage:
    """A notebook open in JupyterLab. Cells are counted from 0, text cells included."""

    def __init__(self, page: Page, lab: Lab) -> None:
        self.page, self.lab = page, lab
        self.complaints: list[str] = []
        page.on("console", self.note_message)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("requestfailed", self.note_failed_request)

    def note_message(self, message: Any) -> None:
        text = f"{message.text} ({message.location.get('url', '')})"
        if message.type == "error" and not any(part in text for part in TOLERATED):
            self.complaints.append(text)

    def note_failed_request(self, request: Any) -> None:
        if not request.url.startswith((self.lab.url, "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}, outside this machine")

    def script(self, body: str, argument: Any = None) -> Any:
        """Run JavaScript with `panel`, `cells` and `argument` in scope; it may await and return."""
        return self.page.evaluate(f"async argument => {{ {PANEL} {body} }}", argument)

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Poll `condition`; name what did not come about, and what a dialog says if one is open."""
        give_up = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > give_up:
                dialogs = self.page.locator(".jp-Dialog").all_inner_texts()
                raise TimeoutError(f"{what} within {seconds} s did not come about; dialogs: {dialogs}")
            self.page.wait_for_timeout(100)

    def open(self, path: str) -> None:
        """Open the notebook and wait for its kernel. JupyterLab's idle sign shows before there is one."""
        self.page.goto(self.lab.page_url(path))
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=OPEN_SECONDS * 1000)
        self.wait_for(lambda: self.kernel_is_ready(path), OPEN_SECONDS, "an idle kernel")

    def kernel_is_ready(self, path: str) -> bool:
        kernels = [session["kernel"] for session in self.lab.sessions() if session["path"] == path]
        ready = any(each["execution_state"] == "idle" and each["connections"] > 0 for each in kernels)
        return ready and self.script("return panel.sessionContext.session?.kernel?.status === 'idle';")

    def use_theme(self, theme: str) -> None:
        """Switch to "light" or "dark" and wait until the page is."""
        name = THEMES[theme]
        self.page.evaluate("t => window.jupyterapp.commands.execute('apputils:change-theme', {theme: t})", name)
        self.page.wait_for_selector(f'body[data-jp-theme-name="{name}"]', state="attached")

    def clear_outputs(self) -> None:
        self.page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")

    def run_all(self, seconds: float = RUN_SECONDS) -> None:
        """Run every cell, and wait for the kernel to have run the last."""
        self.page.evaluate(
            "() => { window.finished = false; window.jupyterapp.commands.execute('notebook:run-all-cells')"
            ".finally(() => { window.finished = true; }); }"
        )
        self.wait_for(lambda: self.page.evaluate("window.finished"), seconds, "the end of the run")
        self.page.wait_for_timeout(300)  # outputs are drawn a little after they arrive

    def set_cell(self, index: int, text: str) -> None:
        """Replace the source of a cell."""
        self.script("cells[argument[0]].model.sharedModel.setSource(argument[1]);", [index, text])

    def run_cell(self, index: int, seconds: float = RUN_SECONDS) -> None:
        """Run one cell and wait for its end."""
        self.script("panel.content.deselectAll(); panel.content.activeCellIndex = argument;", index)
        self.page.evaluate(
            "() => { window.finished = false; window.jupyterapp.commands.execute('notebook:run-cell')"
            ".finally(() => { window.finished = true; }); }"
        )
        self.wait_for(lambda: self.page.evaluate("window.finished"), seconds, f"the end of cell {index}")
        self.page.wait_for_timeout(300)

    def cells(self) -> list[dict[str, Any]]:
        """Each cell: type, source, execution count, metadata and outputs, as the notebook holds them."""
        return self.script("return cells.map(cell => cell.model.sharedModel.toJSON());")

    def cell_with(self, tag: str) -> int:
        """The first cell that carries `tag`."""
        for index, cell in enumerate(self.cells()):
            if tag in cell["metadata"].get("tags", []):
                return index
        raise LookupError(f"no cell is tagged {tag!r}")

    def cell_output_text(self, index: int) -> str:
        """What the reader sees below a cell."""
        return self.script("return cells[argument].outputArea.node.innerText;", index)

    def failed_cells(self) -> list[str]:
        """The cells that raised without leave, and those that did not run."""
        failed = []
        for index, cell in enumerate(self.cells()):
            if cell["cell_type"] != "code" or not "".join(cell["source"]).strip():
                continue
            errors = [each for each in cell["outputs"] if each["output_type"] == "error"]
            if errors and "raises-exception" not in cell["metadata"].get("tags", []):
                failed.append(f"cell {index}: {errors[0]['ename']}: {errors[0]['evalue']}")
            elif cell["execution_count"] is None:
                failed.append(f"cell {index} did not run")
        return failed

    def picture(self, target: Path) -> list[Path]:
        """The whole notebook as `target`-1.png, `target`-2.png, ..., each at most PICTURE_HEIGHT tall."""
        target.parent.mkdir(parents=True, exist_ok=True)
        for old in target.parent.glob(f"{target.name}-*.png"):
            old.unlink()
        scroller = self.page.locator(".jp-NotebookPanel .jp-WindowedPanel-outer")
        around = scroller.evaluate("node => window.innerHeight - node.clientHeight")
        content = scroller.evaluate("node => node.scrollHeight")
        self.page.set_viewport_size({"width": WIDTH, "height": min(PICTURE_HEIGHT, content + around)})
        step = scroller.evaluate("node => node.clientHeight")
        pictures = []
        for top in range(0, max(content, 1), step):
            scroller.evaluate("(node, top) => { node.scrollTop = top; }", top)
            self.page.wait_for_timeout(200)
            pictures.append(target.with_name(f"{target.name}-{len(pictures) + 1}.png"))
            scroller.screenshot(path=pictures[-1])
        return pictures
