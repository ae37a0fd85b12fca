"""What a measured number needs beside it, and how a record of numbers is written."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "tokenspeed-triton-kernels")


def provenance(commit: str | None = None, versions: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return device, date, versions, command and commit.

    commit: stated by the caller, else asked of git in the current folder, else "unknown". versions: more of them.
    """
    known = {"python": platform.python_version(), "cuda": torch.version.cuda}
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU {platform.machine()}",
        "date": datetime.date.today().isoformat(),
        "versions": known | {package: installed_version(package) for package in PACKAGES} | dict(versions or {}),
        "command": command(),
        "commit": commit or current_commit(),
    }


def command() -> str:
    """Return the command of this process as one would type it in the project's folder.

    A path of the project is told from there, and of any other absolute path only the name.
    """

    def short(word: str) -> str:
        if not os.path.isabs(word):
            return word
        path = Path(word)
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name

    return shlex.join(["python", *map(short, sys.argv)])


def installed_version(package: str) -> str:
    """Return the version of the module that would be imported, else of the distribution, else "unknown"."""
    module = sys.modules.get(package)
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def current_commit() -> str:
    """Return git's HEAD of the current folder, with `+` behind it when files differ, or "unknown"."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        status = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")


def write_record(path: Path | str, record: Mapping[str, Any]) -> None:
    """Write the record as JSON beside the path, then rename it, so that a reader never sees half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(beside, path)
