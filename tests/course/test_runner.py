"""Lessons are executed, reported and recorded; failures, dead kernels and interrupts end as they should."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from typer.testing import CliRunner

from gptoss_lab.cli import app
from gptoss_lab.course import notebooks, recorded, report, runner

OPENING = "# Count to {n}\n\n**Time:** 5 minutes of reading, 7 of exercises.\n\nSee [the next](20__next.ipynb)."

TWIN = """import ipywidgets


class Twin(ipywidgets.IntText):
    def _repr_mimebundle_(self, **kwargs):
        return {**super()._repr_mimebundle_(**kwargs), "text/html": "<p>the static twin</p>"}


Twin(value=3)"""


def write(path: Path, *sources: str, tags: dict[int, list[str]] | None = None, kernel: str = "python3") -> Path:
    """Write a notebook with a title and a code cell for each source; `tags` go by the source's number."""
    cells = [new_markdown_cell(OPENING.format(n=len(sources)))]
    for number, source in enumerate(sources):
        cells.append(new_code_cell(source, metadata={"tags": (tags or {}).get(number, [])}))
    notebook = new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"display_name": kernel, "language": "python", "name": kernel}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def code(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebooks.read(path).cells if cell.cell_type == "code"]


# --- run


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with lessons that fail in every way and two that do not."""
    folder = tmp_path_factory.mktemp("course")
    lessons = folder / "notebooks"
    write(lessons / "10__error.ipynb", "x = 1", "def f():\n    raise ValueError('bad\\nnews')\n\nf()", "y = 2")
    write(lessons / "11__dead.ipynb", "import os\n\nos._exit(3)", "y = 2")
    write(lessons / "12__slow.ipynb", "import time\n\ntime.sleep(100)")
    write(lessons / "13__magic.ipynb", "%no_such_magic\nprint('never')")
    write(lessons / "14__raises_nothing.ipynb", "1 + 1", tags={0: ["raises-exception"]})
    write(
        lessons / "15__fine.ipynb",
        "import os, sys\n\n(sys.executable, os.getcwd())",
        "1 / 0",
        "print('five of five')\nprint('and no more')",
        "'<b>not shown</b>'",
        tags={1: ["raises-exception"], 2: ["summary"]},
        kernel="kernel-of-another-machine",
    )
    write(
        lessons / "20__next.ipynb",
        'from IPython.display import HTML\n\nHTML(\'<img alt="dot" src="data:image/png;base64,AAAA">\')',
        TWIN,
        "ipywidgets.IntText()",
        "from IPython.display import Javascript\n\nJavascript('1')",
    )
    return folder


@pytest.fixture(scope="module")
def finished(course: Path) -> subprocess.CompletedProcess[str]:
    """One `gptoss-lab run` over all of them, with eight seconds a cell."""
    # A kernel of the name that every lesson asks for, found before this environment's own, that cannot start.
    spec = course / "jupyter/kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["false"], "display_name": "another machine's", "language": "python"}))
    return subprocess.run(
        [sys.executable, "-m", "gptoss_lab.cli", "run", "--timeout", "8"],
        env={**os.environ, "JUPYTER_PATH": str(course / "jupyter")},
        cwd=course,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture(scope="module")
def lessons(course: Path, finished: subprocess.CompletedProcess[str]) -> dict[str, dict]:
    listing = json.loads((course / "build/course/course.json").read_text(encoding="utf-8"))
    return {lesson["name"]: lesson for lesson in listing["lessons"]}


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("10__error", "ValueError: bad\nnews"),
        ("11__dead", "the kernel died while running this cell"),
        ("12__slow", "ran longer than 8 s"),
        (
            "13__magic",
            "the rest of the cell never ran: UsageError: Line magic function `%no_such_magic` not found",
        ),
        ("14__raises_nothing", "tagged raises-exception and raised nothing"),
    ],
)
def test_failing_lesson_is_named_with_its_reason(lessons: dict[str, dict], name: str, failure: str) -> None:
    assert lessons[name]["status"] == "failed"
    assert failure in lessons[name]["failure"]


def test_other_lessons_still_run(lessons: dict[str, dict]) -> None:
    assert list(lessons) == sorted(lessons) and len(lessons) == 7
    assert [name for name, lesson in lessons.items() if lesson["status"] == "ok"] == ["15__fine", "20__next"]


def test_listing_says_what_a_lesson_is_and_shows(lessons: dict[str, dict]) -> None:
    fine = lessons["15__fine"]
    assert fine["title"] == "Count to 4" and fine["cells"] == 4 and fine["seconds"] > 0
    assert fine["minutes"] == {"reading": 5, "exercises": 7}
    assert fine["shows"] == ["five of five", "and no more"]


def test_run_ends_with_the_failing_cell_and_exit_code_1(finished: subprocess.CompletedProcess[str]) -> None:
    assert finished.returncode == 1 and finished.stderr == ""
    end = finished.stdout[finished.stdout.index("FAILED notebooks/10__error.ipynb, cell 2") :]
    assert "raise ValueError('bad\\nnews')" in end and "ValueError: bad" in end
    assert "Traceback" not in finished.stdout


def test_progress_is_plain_lines_without_a_terminal(finished: subprocess.CompletedProcess[str]) -> None:
    assert re.search(r"^15__fine  cell 3/4  \d+\.\d s$", finished.stdout, re.MULTILINE)
    assert re.search(r"^\[\d/7\] 15__fine  4 cells  \d+\.\d s  ok$", finished.stdout, re.MULTILINE)
    assert "\x1b" not in finished.stdout


def test_lesson_runs_on_this_python_in_its_own_folder(course: Path, finished: subprocess.CompletedProcess[str]) -> None:
    page = (course / "build/course/15__fine.html").read_text(encoding="utf-8")
    assert sys.executable in page and str(course / "notebooks") in page


def test_pages_ask_no_other_host(course: Path, finished: subprocess.CompletedProcess[str]) -> None:
    pages = sorted((course / "build/course").glob("*.html"))
    assert len(pages) == 8
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<script|<iframe|<object|<embed|@import|<base", text, re.IGNORECASE), page
        loaded = re.findall(r"""(?:\bsrc(?:set)?|<link[^>]*\bhref)\s*=\s*["']?([^"'\s>]+)""", text)
        loaded += re.findall(r"url\(\s*[\"']?([^)\"']+)", text)
        assert loaded and all(target.startswith("data:") for target in loaded), page


def test_pages_link_to_each_other(course: Path, finished: subprocess.CompletedProcess[str]) -> None:
    folder = course / "build/course"
    assert 'href="20__next.html"' in (folder / "15__fine.html").read_text(encoding="utf-8")
    index = (folder / "index.html").read_text(encoding="utf-8")
    assert all((folder / target).is_file() for target in re.findall(r'<a href="([^"]+)"', index))
    assert "five of five<br>and no more" in index and "ran longer than 8 s" in index


def test_page_shows_the_static_twin_and_escapes_text(course: Path, finished: subprocess.CompletedProcess[str]) -> None:
    twin = (course / "build/course/20__next.html").read_text(encoding="utf-8")
    assert "<p>the static twin</p>" in twin and "widget-view" not in twin
    assert "<b>not shown</b>" not in (course / "build/course/15__fine.html").read_text(encoding="utf-8")


def test_report_removes_only_pages_of_the_report_before(tmp_path: Path) -> None:
    notebook = new_notebook(cells=[new_markdown_cell("# A title")])
    first, second = (runner.Result(Path(f"{n}__x.ipynb"), notebook, 0) for n in (10, 20))
    (tmp_path / "mine.html").write_text("kept")
    report.write_report([first, second], tmp_path)
    report.write_report([second], tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["20__x.html", "course.json", "index.html", "mine.html"]


def test_run_names_the_lessons_it_knows(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(course)
    said = CliRunner().invoke(app, ["run", "77"])
    assert said.exit_code == 2
    assert said.stderr.startswith("gptoss-lab: no lesson '77': choose from 10__error, ")
    assert said.stderr.count("\n") == 1


def test_run_without_notebooks_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("run", "record", "gate", "lint", "fix", "sync"):
        said = CliRunner().invoke(app, [command])
        assert said.exit_code == 2 and "no notebook in notebooks/" in said.stderr, command


# --- interrupt


def alive(pid: int) -> bool:
    """Whether a process with this id still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("command", "sent"), [("run", signal.SIGINT), ("record", signal.SIGTERM)])
def test_interrupt_leaves_no_kernel_and_no_half_written_file(
    tmp_path: Path, command: str, sent: signal.Signals
) -> None:
    started = "import os, subprocess, time\n\nchild = subprocess.Popen(['sleep', '60'])\n"
    started += "open('pids.part', 'w').write(f'{os.getpid()} {child.pid}')\nos.rename('pids.part', 'pids')\n"
    write(tmp_path / "notebooks/10__long.ipynb", "x = 1", started + "time.sleep(60)")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    process = subprocess.Popen(
        [sys.executable, "-m", "gptoss_lab.cli", command],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Python starts with SIGINT ignored where the shell in front of the tests ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    pids = tmp_path / "notebooks/pids"
    end = time.monotonic() + 60
    while not pids.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    kernel, child = map(int, pids.read_text().split())
    pids.unlink()
    process.send_signal(sent)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and said == "gptoss-lab: interrupted; files are as they were\n"
    assert not alive(kernel) and not alive(child)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# --- record


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[runner.Result], list[str]]:
    """A notebook that can be recorded and two that cannot, executed once and stored."""
    folder = tmp_path_factory.mktemp("recording")
    sources = ["print('a')\nprint('b')", "import nbformat\n\nnbformat.from_dict({}).x", "40 + 2"]
    write(folder / "10__good.ipynb", *sources, TWIN, tags={1: ["raises-exception"]}, kernel="elsewhere")
    write(folder / "11__error.ipynb", "print('a')", "1 / 0")
    write(folder / "12__widget.ipynb", "import ipywidgets\n\nipywidgets.IntText()")
    results = runner.run(sorted(folder.glob("*.ipynb")), timeout=30)
    (folder / "before").mkdir()
    for result in results:
        (folder / "before" / result.path.name).write_bytes(result.path.read_bytes())
    return folder, results, [recorded.store(result) for result in results]


def test_record_numbers_cells_from_one_and_keeps_little_metadata(recording: tuple) -> None:
    folder, _, said = recording
    notebook = notebooks.read(folder / "10__good.ipynb")
    assert said[0] == "" and [cell.execution_count for cell in code(folder / "10__good.ipynb")] == [
        1,
        2,
        3,
        4,
    ]
    assert notebook.metadata == notebooks.METADATA
    assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)
    assert notebooks.format_problems(folder / "10__good.ipynb") == []
    assert recorded.record_problems(folder / "10__good.ipynb") == []


def test_record_stores_static_twins_and_no_path_of_this_machine(recording: tuple) -> None:
    folder, _, _ = recording
    text = (folder / "10__good.ipynb").read_text(encoding="utf-8")
    shown = code(folder / "10__good.ipynb")[3].outputs[0].data
    assert shown["text/html"] == "<p>the static twin</p>" and notebooks.WIDGET_VIEW not in shown
    assert str(folder) not in text and sys.prefix not in text and "/tmp/" not in text


def test_record_leaves_a_failing_notebook_untouched(recording: tuple) -> None:
    folder, _, said = recording
    assert said[1] == "ZeroDivisionError: division by zero"
    assert said[2] == "cell 1 shows a widget without a static twin (text/html)"
    for name in ("11__error.ipynb", "12__widget.ipynb"):
        assert (folder / name).read_bytes() == (folder / "before" / name).read_bytes()


def test_record_twice_gives_the_same_file(recording: tuple) -> None:
    folder, _, _ = recording
    path = folder / "10__good.ipynb"
    before = path.read_bytes()
    (result,) = runner.run([path], timeout=30)
    assert recorded.store(result) == "" and path.read_bytes() == before


def test_kernel_is_spared_what_spoils_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "x")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "PYTEST_CURRENT_TEST" not in runner.kernel_environment()
    assert runner.kernel_environment(at_once=10_000)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert runner.kernel_environment()["OMP_NUM_THREADS"] == "3"
    assert os.environ["PYTEST_CURRENT_TEST"] == "x"
