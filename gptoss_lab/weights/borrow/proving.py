"""The proof by memory protection: a recycled buffer is made unreadable, so that the first late read ends the process.

    proof = prove(["-m", "pytest", "tests/test_my_loader.py"])
    print(proof)

or on the command line: python -m gptoss_lab.weights.borrow -m pytest tests/test_my_loader.py
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gptoss_lab.weights.borrow.child.sitecustomize import LOG_VARIABLE, RECORD
from gptoss_lab.weights.borrow.lines import Line, is_tool

CHILD_FOLDER = Path(__file__).parent / "child"
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
CURRENT = "Current thread"


class ProveError(RuntimeError):
    """A system or a command with which nothing can be proved."""


@dataclass(frozen=True)
class LateRead:
    """One process's first read of a recycled buffer.

    `tensor` is its name, None for memory that was not yielded under one. `line` is the innermost line outside of torch
    and NumPy, `stack` all lines of that thread, innermost first. Both are empty if a thread without Python read.
    """

    pid: int
    tensor: str | None
    line: Line | None
    stack: tuple[Line, ...]

    def __str__(self) -> str:
        what = "memory of the buffer" if self.tensor is None else f"tensor {self.tensor!r}"
        return f"{what} was read at {self.line or 'no Python line'} after its request was recycled (process {self.pid})"


@dataclass(frozen=True)
class Proof:
    """What became of a command. `returncode` is negative if a signal ended it; -11 is a late read, or another crash."""

    returncode: int
    late_reads: tuple[LateRead, ...]
    stdout: str
    stderr: str

    @property
    def holds(self) -> bool:
        """Whether the command ended well and nothing was read late in any of its processes."""
        return self.returncode == 0 and not self.late_reads

    def __str__(self) -> str:
        if self.late_reads:
            return "\n".join(map(str, self.late_reads))
        if self.returncode:
            return f"nothing was read late, but the command ended with {self.returncode}"
        return "nothing was read late"


def prove(
    command: Sequence[str | os.PathLike],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike | None = None,
    capture: bool = True,
) -> Proof:
    """Run a Python command with every request's buffer in a mapping of its own, unreadable once it is recycled.

    `command` is what follows `python`: `["loader.py", "--small"]`, `["-m", "pytest", "tests"]`, `["-c", "..."]`; a
    full command that starts with a Python works too. Its child processes are watched as well. `timeout` is in seconds;
    `env` is added to this process's environment. Without `capture` the output goes where this process's goes.

    The whole buffer of a request is taken away, also what the next request does not reach: reading that is late too,
    and right by luck. The reads themselves are not slowed down, but each request has to fill fresh memory. torch runs
    with one thread, so that the thread that reads is one that has Python lines. What a distributed stream copies into
    its own buffers is not watched. The installed streamer is not changed.

    Raises:
        ProveError: not Linux, or an empty command. subprocess.TimeoutExpired: after the command and all it started
            were ended.
    """
    if sys.platform != "linux":
        raise ProveError(f"prove needs Linux's memory protection, and this is {sys.platform}: use audit or guard")
    if not command:
        raise ProveError('there is no command to prove: give what follows python, such as ["loader.py"]')
    words = [os.fspath(word) for word in command]
    if not Path(words[0]).name.startswith("python"):
        words = [sys.executable, *words]
    with tempfile.TemporaryDirectory() as folder:
        environment = child_environment({**os.environ, **(env or {})}, folder)
        returncode, stdout, stderr = run(words, environment, cwd, timeout, capture)
        logs = [log.read_text(errors="replace") for log in sorted(Path(folder).glob("*.log"))]
    reads = tuple(read for log in logs for read in read_log(log))
    return Proof(returncode, reads, stdout, stderr)


def child_environment(environment: Mapping[str, str], log_folder: str) -> dict[str, str]:
    """The environment in which every Python process watches the streamer."""
    path = [str(CHILD_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
    options = [*filter(None, [environment.get("PYTEST_ADDOPTS")]), "-p no:faulthandler"]  # it would take the log away
    return dict(environment) | {
        "PYTHONPATH": os.pathsep.join(path),
        LOG_VARIABLE: log_folder,
        "OMP_NUM_THREADS": "1",
        "PYTEST_ADDOPTS": " ".join(options),
    }


def run(
    words: list[str],
    environment: dict[str, str],
    cwd: str | os.PathLike | None,
    timeout: float | None,
    capture: bool,
) -> tuple[int, str, str]:
    """Run a command in a process group of its own; whatever interrupts the wait ends the group."""
    pipe = subprocess.PIPE if capture else None
    child = subprocess.Popen(
        words, env=environment, cwd=cwd, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        stdout, stderr = child.communicate(timeout=timeout)
    finally:
        end_group(child.pid)
        child.wait()
    return child.returncode, stdout or "", stderr or ""


def end_group(leader: int) -> None:
    """End what is left of a process group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def read_log(text: str) -> list[LateRead]:
    """Turn one process's log into its late reads: faulthandler's lines, then the record of the tensor."""
    reads, rest = [], text
    while RECORD in rest:
        trace, _, rest = rest.partition(RECORD)
        record, _, rest = rest.partition("\n")
        stack = current_stack(trace)
        line = next((line for line in stack if not is_foreign(line.file)), None)
        reads.append(LateRead(**json.loads(record), line=line, stack=stack))
    return reads


def current_stack(trace: str) -> tuple[Line, ...]:
    """The lines of the thread that failed, innermost first."""
    _, found, after = trace.rpartition(CURRENT)
    if not found:
        return ()
    own = after.partition("\n\n")[0]
    return tuple(Line(file, int(number), function) for file, number, function in FRAME.findall(own))


def is_foreign(file: str) -> bool:
    """Tell whether a line is not the loader's but torch's or NumPy's."""
    return is_tool(file) or f"{os.sep}numpy{os.sep}" in file
