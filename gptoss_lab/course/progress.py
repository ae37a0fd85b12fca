"""What a reader sees while lessons run, and the tables at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gptoss_lab.course import lint, notebooks
from gptoss_lab.course.runner import Progress as Cell
from gptoss_lab.course.runner import Result


class Progress:
    """Shows the lessons that run now on a terminal, and prints a line a cell elsewhere."""

    def __init__(self, lessons: int, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.lessons, self.finished, self.width = lessons, 0, 0
        self.now: dict[Path, tuple[Cell, float]] = {}
        self.lock = threading.Lock()
        self.live = Live(console=self.console, get_renderable=self._running, transient=True, refresh_per_second=4)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def cell(self, done: Cell) -> None:
        """Show that a cell is done."""
        with self.lock:
            self.now[done.path] = (done, time.monotonic())
            if done.cell and not self.console.is_terminal:
                self._line(f"{_name(done.path)}  cell {done.cell}/{done.cells}  {done.seconds:.1f} s")

    def lesson(self, result: Result) -> None:
        """Show that a lesson is done."""
        with self.lock:
            self.finished += 1
            self.now.pop(result.path, None)
            said = "ok" if result.ok else "FAILED"
            done = f"[{self.finished}/{self.lessons}]"
            self._line(f"{done} {_name(result.path)}  {result.cells} cells  {result.seconds:.1f} s  {said}")

    def _line(self, text: str) -> None:
        self.console.print(Text(text))

    def _running(self) -> Table:
        table = Table.grid(padding=(0, 2))
        with self.lock:
            for path, (done, since) in self.now.items():
                waiting = time.monotonic() - since
                table.add_row(_name(path), f"cell {min(done.cell + 1, done.cells)}/{done.cells}", f"{waiting:.0f} s")
        return table


def _name(path: Path) -> str:
    """The lesson's name, with its folder if it is a solved twin."""
    return f"{notebooks.SOLUTIONS}/{path.stem}" if path.parent.name == notebooks.SOLUTIONS else path.stem


def print_summary(results: Sequence[Result], console: Console | None = None) -> None:
    """Print what each lesson showed, then what failed."""
    console = console or Console(highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE, show_edge=False)
    for name in ("lesson", "seconds", "it showed"):
        table.add_column(name, justify="right" if name == "seconds" else "left", overflow="fold")
    for result in results:
        said = "\n".join(result.shows) if result.ok else f"FAILED: {result.failure.splitlines()[0]}"
        heading = f"{result.path.stem[:2]}  {lint.title(result.notebook) or result.path.stem}"
        table.add_row(Text(heading), f"{result.seconds:.1f}", Text(said))
    console.print(table)
    print_failures(results, console)


def print_failures(results: Sequence[Result], console: Console | None = None) -> None:
    """Print the failing cell of each notebook that failed: where, its source, the error in short."""
    console = console or Console(highlight=False, soft_wrap=True)
    for result in results:
        if not result.ok:
            where = f"{result.path}, cell {result.failed_cell}" if result.failed_cell is not None else f"{result.path}"
            source = "".join(f"    {line}\n" for line in result.failed_source.splitlines())
            console.print(Text(f"\nFAILED {where}\n{source}{result.failure}"))
