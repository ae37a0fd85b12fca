"""Fixtures of the browser tests. A missing browser fails them; nothing is skipped."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file

from lab_server import REPOSITORY, Lab, running_lab  # noqa: E402

FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
INSTALL = "apt-get install chromium fonts-dejavu fonts-liberation"


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """Debian's Chromium, without a window."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.fail(f"no Chromium on this machine: {INSTALL}")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("no playwright in this environment: pip install 'gptoss-lab[browser]'")
    flags = FLAGS + (["--no-sandbox"] if os.geteuid() == 0 else [])  # root cannot have Chromium's sandbox
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab over a copy of the lessons, so that what is recorded stays as it is."""
    with running_lab(tmp_path_factory.mktemp("lab"), REPOSITORY / "notebooks") as lab:
        yield lab


@pytest.fixture
def open_in(browser) -> Iterator[Callable]:
    """A function that opens a notebook of a running JupyterLab: `open_in(lab, "10__name.ipynb")`."""
    from lab_page import PICTURE_HEIGHT, WIDTH, LessonPage

    contexts, labs = [], []

    def open_notebook(lab: Lab, path: str) -> LessonPage:
        contexts.append(browser.new_context(viewport={"width": WIDTH, "height": PICTURE_HEIGHT // 2}))
        labs.append(lab)
        lesson = LessonPage(contexts[-1].new_page(), lab)
        lesson.open(path)
        return lesson

    yield open_notebook
    for context in contexts:
        context.close()
    for lab in labs:
        lab.end_sessions()


@pytest.fixture
def open_lesson(lab: Lab, open_in: Callable) -> Callable:
    """`open_lesson("10__name.ipynb")`: a lesson, its kernel idle."""
    return lambda path: open_in(lab, path)
