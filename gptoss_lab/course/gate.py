"""The notebook gate: what was recorded must come out again, and nothing may pass in silence.

`main` looks through what is recorded, then runs pytest with nbval 0.11 and with this module as a plugin that
mends it (`-p gptoss_lab.course.gate`). By itself nbval passes a stripped notebook, a cell that should raise
and does not, a cell that an unknown magic cut short, and a sanitiser entry that it cannot read. It waits out
the whole time limit for a kernel that died, and it asks for the kernel that the notebook names.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from nbformat import NotebookNode

from gptoss_lab.course import notebooks
from gptoss_lab.course.recorded import record_problems, sanitiser_problems, texts
from gptoss_lab.course.runner import ANSI, kernel_environment

SANITISER = Path(__file__).with_name("sanitize.cfg")
RAN: set[str] = set()


# --- the plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of cells that must have run."""
    parser.addoption("--gate-cells", type=int, help="Fail unless at least so many notebook cells were run.")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Mend nbval, use this environment's kernel and the course's sanitiser, and refuse a malformed one."""
    if not getattr(config.option, "nbval", False):
        return
    import nbval.kernel

    if not hasattr(nbval.kernel.start_new_kernel, "mended"):
        nbval.kernel.start_new_kernel = _mended_start(nbval.kernel.start_new_kernel)
        nbval.kernel.RunningKernel.await_reply = _await_reply
    config.option.nbval_current_env = True
    config.option.nbval_sanitize_with = config.option.nbval_sanitize_with or str(SANITISER)
    problems = sanitiser_problems(Path(config.option.nbval_sanitize_with))
    if problems:
        raise pytest.UsageError(f"{config.option.nbval_sanitize_with}: {'; '.join(problems)}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the cells that ran, in the process that gives the verdict."""
    RAN.update({report.nodeid} if report.when == "call" or report.failed else ())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if fewer cells ran than there are: pytest-xdist drops cells that have the node id of others."""
    expected = session.config.getoption("--gate-cells")
    if expected and not hasattr(session.config, "workerinput") and len(RAN) < expected and session.exitstatus == 0:
        print(f"\ngate: {len(RAN)} of {expected} cells ran", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _mended_start(start: Any) -> Any:
    def start_new_kernel(*args: Any, **kwargs: Any) -> Any:
        return start(*args, env=kernel_environment(at_once=2), **kwargs)

    start_new_kernel.mended = True  # type: ignore[attr-defined]
    return start_new_kernel


def _await_reply(kernel: Any, msg_id: str, timeout: float | None = None) -> None:
    """Like nbval's, but it notices within a second that the kernel died, and it keeps the reply's status."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            message = kernel.get_message(stream="shell", timeout=1)
        except Empty:
            if not kernel.is_alive():
                raise RuntimeError("the kernel died while running this cell") from None
            if end is not None and time.monotonic() > end:
                raise
            continue
        if message["parent_header"].get("msg_id") == msg_id:
            kernel.last_status = message["content"].get("status")
            if kernel.last_status == "aborted":
                raise RuntimeError("the kernel aborted this cell")
            return


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """After nbval's own comparison, fail the cells that it passes in silence."""
    result = yield
    if type(item).__name__ == "IPyNbCell":
        kernel = item.parent.kernel  # type: ignore[attr-defined]
        fault = live_fault(item.cell, item.test_outputs or [], getattr(kernel, "last_status", "ok"))  # type: ignore
        if fault:
            item.raise_cell_error(fault)  # type: ignore[attr-defined]
    return result


def live_fault(cell: NotebookNode, outputs: Sequence[NotebookNode], status: str) -> str:
    """What is wrong with a cell that just ran with these outputs and this status of the kernel's reply."""
    raised = any(output.output_type == "error" for output in outputs)
    if "raises-exception" in notebooks.tags(cell) and not raised:
        return "The cell is tagged raises-exception and raised nothing"
    if status == "error" and not raised:
        return "The rest of the cell never ran: " + ANSI.sub("", "".join(texts(outputs))).strip()
    if cell.get("execution_count") is None:
        return "The cell was never recorded: run gptoss-lab record"
    for output in outputs:
        if notebooks.WIDGET_VIEW in output.get("data", {}) and "text/html" not in output.data:
            return "The cell shows a widget without a static twin (text/html)"
    return ""


# --- the gate


def main(paths: Sequence[Path], *, timeout: float = 120, jobs: int = 2, sanitiser: Path = SANITISER) -> int:
    """Look through what the notebooks at `paths` recorded, then run them. Returns 0 if all pass, else not.

    `timeout` is in seconds and holds for one cell. With pytest-xdist, `jobs` notebooks run at once.
    """
    problems = [f"{path}: {problem}" for path in paths for problem in record_problems(path)]
    problems += [f"{sanitiser.name}: {problem}" for problem in sanitiser_problems(sanitiser)]
    for problem in problems:
        print(problem, flush=True)
    if not paths or problems:
        print(f"gate: {len(problems)} problems in {len(paths)} notebooks, none was run", file=sys.stderr)
        return 1
    return subprocess.run(command_line(paths, timeout, jobs, sanitiser), check=False).returncode


def command_line(paths: Sequence[Path], timeout: float, jobs: int, sanitiser: Path) -> list[str]:
    """The command that runs the notebooks at `paths` strictly with nbval and this plugin."""
    cells = sum(cell.cell_type == "code" for path in paths for cell in notebooks.read(path).cells)
    # No configuration file and a root above all notebooks: else their cells may get the same node ids.
    root = os.path.commonpath([path.resolve().parent for path in paths])
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", root, "--nbval"]
    command += ["-p", "no:cacheprovider", "-p", "gptoss_lab.course.gate", "--gate-cells", str(cells)]
    command += ["--nbval-cell-timeout", f"{timeout:g}", "--nbval-sanitize-with", str(sanitiser)]
    at_once = min(jobs, len(paths))
    if at_once > 1 and importlib.util.find_spec("xdist"):
        command += ["-n", str(at_once), "--dist", "loadscope"]
    return [*command, *map(str, paths)]
