"""One participant in a real browser: the login page, the first lesson, a lesson run from the menu."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file

import rooms  # noqa: E402

pytestmark = pytest.mark.browser

LESSON = "10__every_answer_is_bang.ipynb"
LESSON_SECONDS = 180
FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
PICTURES = Path(__file__).resolve().parents[2] / "build" / "screens"


@pytest.fixture
def page():
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.fail("no Chromium on this machine: apt-get install chromium fonts-dejavu fonts-liberation")
    flags = FLAGS + (["--no-sandbox"] if os.geteuid() == 0 else [])  # root cannot have Chromium's sandbox
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser.new_page(viewport={"width": 1400, "height": 900})
        browser.close()


def code_cells(path: Path) -> list[dict]:
    """The code cells of a notebook; none while it is being written."""
    try:
        return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    except ValueError:
        return []


def bring_along(folder: Path) -> Path:
    """Put the lesson without its outputs into the user's folder; the room leaves it as it is."""
    notebook = json.loads((rooms.settings.ROOT / "notebooks" / LESSON).read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    folder.mkdir(parents=True)
    path = folder / LESSON
    path.write_text(json.dumps(notebook))
    return path


def wait_for_kernel(page, sessions: str) -> None:
    """Wait until the lesson's kernel is idle and the page is connected; JupyterLab's sign says so too early."""
    page.wait_for_function(
        """async ([address, name]) => {
            const token = document.cookie.match(/_xsrf=([^;]+)/)?.[1] ?? '';
            const reply = await fetch(address, {headers: {'X-XSRFToken': token}});
            return reply.ok && (await reply.json()).some(each => each.path.endsWith(name)
                && each.kernel.execution_state === 'idle' && each.kernel.connections > 0);
        }""",
        arg=[sessions, LESSON],
        polling=1000,
        timeout=120_000,
    )


def test_from_the_login_page_to_the_end_of_a_lesson(page, tmp_path):
    PICTURES.mkdir(parents=True, exist_ok=True)
    with rooms.open_room(tmp_path) as (room, words):
        path = bring_along(room.home / "ann" / "notebooks")
        page.goto(room.url)
        page.fill("#username_input", "ann")
        page.fill("#password_input", words)
        page.screenshot(path=PICTURES / "room-login.png")
        page.click("#login_submit")
        page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-RenderedHTMLCommon h1", timeout=120_000)
        assert page.url == f"{room.url}/user/ann/lab/tree/notebooks/00__start_here.ipynb"

        page.goto(f"{room.url}/user/ann/lab/tree/notebooks/{LESSON}?reset")
        lesson = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        lesson.get_by_role("heading", name="Find out why every answer is").wait_for(timeout=120_000)
        wait_for_kernel(page, f"{room.url}/user/ann/api/sessions")
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        give_up = time.monotonic() + LESSON_SECONDS
        # A cell gets its number when it has run; save until all have one.
        while not (cells := code_cells(path)) or not all(cell["execution_count"] for cell in cells):
            assert time.monotonic() < give_up, f"cells of the lesson have not run after {LESSON_SECONDS} s"
            page.wait_for_timeout(2000)
            page.keyboard.press("Control+s")
        page.screenshot(path=PICTURES / "room-lesson.png")
        outputs = [output for cell in cells for output in cell["outputs"]]
        printed = ["".join(output["text"]) for output in outputs if output.get("name") == "stdout"]
        assert "' Paris.'\n" in printed and "'!!!!!!!!!!!!'\n" in printed
        assert [
            output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"
        ] == []
        # JupyterLab asks nobody about news.
        assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0
