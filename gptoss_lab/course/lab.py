"""What every lesson starts with: where the data lies, and the versions that matter."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
CAPITALS = DATA / "capitals"


def print_versions(*packages: str) -> None:
    """Print one line with the version of Python and of each distribution in `packages`."""
    parts = [f"python {platform.python_version()}"]
    for name in packages:
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            parts.append(f"{name} not installed")
    print(" · ".join(parts))
