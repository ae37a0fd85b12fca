"""The processes of a room: which they are, what they hold, and how they are ended. Linux only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from settings import CONFIG, Room


def processes(room: Room) -> list[int]:
    """The processes that carry the room in their environment: hub, proxy, culler, servers, kernels."""
    mark = f"GPTOSS_LAB_ROOM={room.folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), os.getppid()):
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            pass  # ended meanwhile, or of another account
    return sorted(found)


def hub_pid(room: Room) -> int | None:
    """The hub among the processes of the room."""
    for pid in processes(room):
        try:
            if str(CONFIG).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        except OSError:
            pass
    return None


def proportional_kib(pid: int) -> int:
    """The memory of a process in KiB; pages that several share are divided among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether `holds` became true within `seconds`."""
    give_up = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.1)
    return True


def end_all(room: Room) -> list[int]:
    """End what is left of a room, gently and then not; return what is left even so."""
    for sign, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        for pid in processes(room):
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                pass
        if wait_until(lambda: not processes(room), seconds):
            break
    return processes(room)
