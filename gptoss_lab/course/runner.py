"""Execute lessons, each on a fresh kernel of this very environment.

The kernel that a notebook names is never asked for: it may belong to another machine. Each notebook runs in a
thread of its own; an interrupt kills every kernel before it is passed on.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from gptoss_lab.course import notebooks

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Progress:
    """Number `cell` of the `cells` code cells of the notebook at `path` took `seconds`; 0: it starts."""

    path: Path
    cell: int
    cells: int
    seconds: float


@dataclass
class Result:
    """What one execution came to. `failure` is empty if every cell ran as it should."""

    path: Path
    notebook: NotebookNode
    cells: int
    seconds: float = 0.0
    failure: str = ""
    failed_cell: int | None = None
    failed_source: str = ""
    shows: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every cell ran as it should."""
        return not self.failure


class ThisEnvironment(AsyncKernelManager):
    """A kernel manager whose only kernel is this Python, whatever kernelspecs the machine has."""

    @property
    def kernel_spec(self) -> KernelSpec:  # noqa: D102
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())


def kernel_environment(at_once: int = 1) -> dict[str, str]:
    """The environment of a lesson's kernel when `at_once` of them share the machine."""
    environment = dict(os.environ)
    environment.pop("PYTEST_CURRENT_TEST", None)  # ipykernel stops capturing the output of C code when it is set
    environment.pop("MPLBACKEND", None)
    environment["GPTOSS_LAB_PROGRESS"] = "off"  # what a run passes is no learner's progress
    environment["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # keeps a warning of the debugger's off stderr
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    return environment


def run(
    paths: Sequence[Path],
    *,
    timeout: float = 120,
    jobs: int = 2,
    on_cell: Callable[[Progress], None] = lambda progress: None,
    on_lesson: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Execute the notebooks at `paths`, at most `jobs` at a time. Returns results in the order of `paths`.

    `timeout` is in seconds and holds for one cell. A failing cell ends its own notebook only. `on_cell` and
    `on_lesson` are called from the threads that execute. On KeyboardInterrupt or SIGTERM all kernels are
    killed, then KeyboardInterrupt is raised.
    """
    running = _Running(min(jobs, len(paths)) or 1, timeout, on_cell)

    def execute(path: Path) -> Result:
        result = running.execute(path)
        if not running.stopped.is_set():
            on_lesson(result)
        return result

    with ThreadPoolExecutor(running.at_once) as pool, _terminate_as_interrupt():
        futures = [pool.submit(execute, path) for path in paths]
        try:
            # Short waits, since a wait without an end is not interrupted on every system.
            while wait(futures, timeout=0.5).not_done:
                pass
        except BaseException:
            running.stopped.set()
            for future in futures:
                future.cancel()
            while wait([future for future in futures if not future.cancelled()], timeout=0.1).not_done:
                running.kill()
            raise
    return [future.result() for future in futures]


class _terminate_as_interrupt:
    """Turns SIGTERM into KeyboardInterrupt while it is entered; outside the main thread it does nothing."""

    def __enter__(self) -> None:
        self.main = threading.current_thread() is threading.main_thread()
        if self.main:
            self.before = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        if self.main:
            signal.signal(signal.SIGTERM, self.before)


class _Running:
    """The kernels that are alive now, and the way to end them."""

    def __init__(self, at_once: int, timeout: float, on_cell: Callable[[Progress], None]) -> None:
        self.at_once, self.timeout, self.on_cell = at_once, timeout, on_cell
        self.stopped = threading.Event()
        self.clients: set[NotebookClient] = set()

    def kill(self) -> None:
        """Kill every kernel with the processes that it started."""
        for client in list(self.clients):
            provisioner = getattr(client.km, "provisioner", None)
            group = getattr(provisioner, "pgid", None) or getattr(provisioner, "pid", None)
            if group:
                try:
                    os.killpg(group, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def execute(self, path: Path) -> Result:
        """Execute one notebook; whatever goes wrong in it is in the result."""
        notebook = notebooks.canonical(notebooks.read(path))
        code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        for index in code:
            notebook.cells[index].outputs, notebook.cells[index].execution_count = [], None
        result = Result(path, notebook, len(code))
        client = NotebookClient(
            notebook,
            kernel_manager_class=ThisEnvironment,
            kernel_name="python3",
            timeout=self.timeout,
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,
        )
        state = {"cell": 0, "started": 0.0}

        def start(cell: NotebookNode, cell_index: int) -> None:
            if self.stopped.is_set():
                raise RuntimeError("interrupted")
            state.update(cell=cell_index, started=time.monotonic())

        def done(cell: NotebookNode, cell_index: int, execute_reply: dict | None) -> None:
            seconds = time.monotonic() - state["started"]
            self.on_cell(Progress(path, code.index(cell_index) + 1, len(code), seconds))
            fault = _quiet_fault(cell, execute_reply)
            if fault:
                raise RuntimeError(fault)

        client.on_cell_start, client.on_cell_executed = start, done
        self.on_cell(Progress(path, 0, len(code), 0.0))
        started = time.monotonic()
        self.clients.add(client)
        try:
            client.execute(
                cwd=str(path.parent.resolve()),
                env=kernel_environment(self.at_once),
                stderr=subprocess.DEVNULL,
            )
        except Exception as error:  # noqa: BLE001  the reader gets it as the lesson's failure
            result.failed_cell = state["cell"]
            result.failed_source = notebook.cells[state["cell"]].source if notebook.cells else ""
            result.failure = _in_short(error, self.timeout)
        finally:
            self.clients.discard(client)
        result.seconds = time.monotonic() - started
        result.notebook = notebooks.canonical(notebook)
        result.shows = summary(notebook)
        return result


def _quiet_fault(cell: NotebookNode, reply: dict | None) -> str:
    """What is wrong with a cell that ran, though the kernel raised nothing that a reader would see."""
    raised = any(output.output_type == "error" for output in cell.outputs)
    if "raises-exception" in notebooks.tags(cell) and not raised:
        return "the cell is tagged raises-exception and raised nothing"
    if (reply or {}).get("content", {}).get("status") == "error" and not raised:
        text = "".join(output.get("text", "") for output in cell.outputs if output.output_type == "stream")
        return f"the rest of the cell never ran: {ANSI.sub('', text).strip()}"
    return ""


def _in_short(error: Exception, timeout: float) -> str:
    if isinstance(error, CellExecutionError):
        return f"{error.ename}: {ANSI.sub('', error.evalue).strip()}".removesuffix(": ")
    if isinstance(error, CellTimeoutError):
        return f"ran longer than {timeout:g} s: raise --timeout or show a smaller case"
    if isinstance(error, DeadKernelError):
        return "the kernel died while running this cell"
    return f"{type(error).__name__}: {error}" if not isinstance(error, RuntimeError) else str(error)


def summary(notebook: NotebookNode) -> list[str]:
    """The lines that the cell tagged `summary` printed: what the lesson showed."""
    return [
        line
        for cell in notebook.cells
        if cell.cell_type == "code" and "summary" in notebooks.tags(cell)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
        for line in output.text.splitlines()
        if line.strip()
    ]
