"""A room for a test: in a folder of its own, on free ports, and closed whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "jupyterhub"
sys.path.insert(0, str(DEPLOY))

import room as hub  # noqa: E402
import settings  # noqa: E402


def free_ports() -> int:
    """The first of three free ports in a row."""
    first = next((port for port in range(18300, 19300, 3) if all(map(hub.is_free, range(port, port + 3)))), None)
    assert first is not None, "no three free ports in a row between 18300 and 19300"
    return first


def command(room: settings.Room, *words: str) -> subprocess.CompletedProcess:
    """`room.py` as one types it; the room's settings are handed over as variables."""
    environment = {**os.environ, **room.environment()}
    environment.pop("PYTEST_CURRENT_TEST", None)
    allow = ["--allow-root"] if words[0] == "start" and os.geteuid() == 0 else []
    return subprocess.run(
        [sys.executable, str(DEPLOY / "room.py"), *words, *allow],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )


def start(room: settings.Room) -> str:
    """Open the room; returns the passphrase that was printed."""
    done = command(room, "start")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout.split("Passphrase:")[1].strip()


@contextmanager
def open_room(folder: Path, **values: object) -> Iterator[tuple[settings.Room, str]]:
    """A running room and its passphrase."""
    room = settings.Room(folder.resolve(), port=free_ports(), **values)
    try:
        yield room, start(room)
    finally:
        hub.end_all(room) if command(room, "stop").returncode else None
