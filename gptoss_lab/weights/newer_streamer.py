"""The streamer's next contract, run for real: release 0.17 in a folder of its own, in a process of its own.

The course runs on 0.16.1, the last release that lends every tensor. `make venv` puts 0.17 into a folder that is not
on the path. A child process that gets this folder first imports 0.17 from there, and all else from this environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER_VARIABLE = "GPTOSS_LAB_STREAMER_017"
PACKAGE = "runai_model_streamer"
ROOT = Path(__file__).resolve().parents[2]
PLACE = Path("beside") / "streamer-0.17"
REMEDY = "run `make venv`, or set " + FOLDER_VARIABLE + " to a folder that has it"


class NewerStreamerError(RuntimeError):
    """The newer streamer is missing, or the process that ran with it failed."""


def find_newer_streamer() -> Path | None:
    """Return the folder with the streamer 0.17, None if there is none.

    Looks where the environment variable GPTOSS_LAB_STREAMER_017 says; without it in the environment of this Python,
    then in the project's .venv.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    folders = [Path(named)] if named else [Path(sys.prefix) / PLACE, ROOT / ".venv" / PLACE]
    return next((folder.resolve() for folder in folders if version_in(folder)), None)


def version_in(folder: Path) -> str | None:
    """Return the version of the streamer that a folder holds, read from its name tag; None if it holds none."""
    if not (folder / PACKAGE / "__init__.py").is_file():
        return None
    tags = sorted(folder.glob(f"{PACKAGE}-*.dist-info"))
    return tags[-1].name.removesuffix(".dist-info").split("-")[1] if tags else None


def run_with_newer_streamer(command: Sequence[str | Path], seconds: float = 120) -> str:
    """Run Python with the streamer 0.17 in a child process and return what it printed.

    `command` is what follows `python`: ["-m", "module", ...], ["-c", "..."] or [path, ...]. The child finds this
    package too. The streamer's own variables are not handed on, so that the child begins with its defaults.

    Raises:
        NewerStreamerError: no such release here, or a child that failed or took too long; with its last line.
    """
    folder = find_newer_streamer()
    if folder is None:
        raise NewerStreamerError(f"the streamer 0.17 is not here: {REMEDY}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNAI_STREAMER_")}
    path = [str(folder), str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    words = [sys.executable, *map(str, command)]
    try:
        child = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise NewerStreamerError(f"python {' '.join(words[1:])} did not end within {seconds} s") from None
    if child.returncode:
        last = child.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise NewerStreamerError(f"python {' '.join(words[1:])} ended with {child.returncode}: {last[0]}")
    return child.stdout
