"""Run commands that do not outlive this process, whatever ends it, and leave nothing behind.

A signal that ends a process at once leaves it no time to tidy up. So another process does that: the keeper. It
starts the commands, and watches its parent. When the parent asks for it, or is gone, the keeper kills the commands,
removes the leftovers that it was told of, and ends. Should the keeper itself be killed, Linux kills the commands.

The keeper is this file, run as a script in a bare Python, so it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # of prctl(2)
LOOK_EVERY = 0.1  # seconds between two looks at the parent and at the commands
TIDY_UP_WITHIN = 30.0  # seconds


class Kept:
    """Commands that run under a keeper, from now until `end` is called or this process is gone.

    commands: each a list of words. output: the file that takes what they print. leftovers: files and folders to remove
    at the end. environment: of all of them, instead of this process's.

    They are in sessions of their own, so Ctrl-C in a terminal or a kernel's interrupt does not reach them. If one of
    them fails, the others are killed.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str | os.PathLike]],
        *,
        output: Path,
        leftovers: Iterable[str | os.PathLike] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        order = {
            "commands": [list(map(os.fspath, command)) for command in commands],
            "leftovers": list(map(os.fspath, leftovers)),
            "output": os.fspath(output),
            "parent": os.getpid(),
        }
        self._code: int | None = None
        pipe = subprocess.PIPE
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__], stdin=pipe, stdout=pipe, env=environment, start_new_session=True
        )
        weakref.finalize(self, self._keeper.stdin.close)  # nobody holds this object any more
        try:
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()
        except BaseException:
            self.end()
            raise

    def wait(self, seconds: float) -> int | None:
        """Wait until all have ended, for so many seconds at most.

        Returns None while they run, then 0, or the exit code of the first that failed (128 + n for signal n).
        """
        if self._code is None and select.select([self._keeper.stdout], [], [], seconds)[0]:
            self._code = int(self._keeper.stdout.readline() or 128 + signal.SIGKILL)
        return self._code

    def end(self) -> None:
        """Kill what runs, and return when it is gone and the leftovers are removed."""
        with contextlib.suppress(OSError):  # the keeper was killed
            self._keeper.stdin.close()
        try:
            self._keeper.wait(TIDY_UP_WITHIN)
        except BaseException:
            self._keeper.kill()  # and Linux kills the commands
            self._keeper.wait()
            raise
        finally:
            self._keeper.stdout.close()


# ---- the keeper's own side -----------------------------------------------------------------------------------------


def keep(order: Mapping) -> None:
    """Start the commands of an order, see them to their end, say their exit code, and tidy up when told to."""
    processes: list[subprocess.Popen] = []
    try:
        with open(order["output"], "wb") as output:
            for command in order["commands"]:
                processes.append(start(command, output))
        code = watch(processes, order["parent"])
        kill(processes)
        if code is not None:
            with contextlib.suppress(OSError):  # nobody listens any more
                os.write(1, b"%d\n" % code)
            while is_wanted(order["parent"]):
                pass
    finally:
        kill(processes)
        for path in order["leftovers"]:
            remove(path)


def start(command: Sequence[str], output: object) -> subprocess.Popen:
    """Start one command, in a session of its own and bound to the keeper's life."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=die_with_the_parent,
    )


def watch(processes: Sequence[subprocess.Popen], parent: int) -> int | None:
    """Wait until every process has ended well (0), one has failed (its code), or no more is wanted (None)."""
    while is_wanted(parent):
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed:
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if None not in codes:
            return 0
    return None


def is_wanted(parent: int) -> bool:
    """Whether the parent is there and still holds its end of the pipe; looks for a moment."""
    return os.getppid() == parent and not select.select([0], [], [], LOOK_EVERY)[0]


def die_with_the_parent() -> None:
    """In a child: ask Linux to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill(processes: list[subprocess.Popen]) -> None:
    """Kill each process, and what it started in its session, also if it has ended itself. Empties the list."""
    while processes:
        process = processes.pop()
        with contextlib.suppress(ProcessLookupError):  # nobody is left there
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def remove(path: str, tries: int = 20) -> None:
    """Remove a file or a folder. A folder is tried again, since a killed process may just have written to it."""
    for _ in range(tries):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if not os.path.lexists(path):
            return
        time.sleep(LOOK_EVERY)


def read_order() -> Mapping | None:
    """Read the order, one line of JSON, from the standard input; None if the parent is gone before it was whole."""
    line = bytearray()
    while not line.endswith(b"\n"):  # byte by byte: a buffer would hide from `select` what comes behind the line
        byte = os.read(0, 1)
        if not byte:
            return None
        line += byte
    return json.loads(line)


if __name__ == "__main__":
    given = read_order()
    if given is not None:
        keep(given)
