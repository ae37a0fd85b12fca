"""What the tests of processes look for: who runs, and until when to wait for it to change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def running(mark: object) -> list[int]:
    """The processes in whose command line a text stands, without this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(mark).encode() in words:
                found.append(int(entry.name))
    return found


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
