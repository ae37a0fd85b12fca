"""Resolve the four locks of the project: CPU and GPU, Python 3.11 and 3.12, Linux on x86_64; and those beside them.

Run it through `make lock`. Pins that stand are kept; `make lock ARGS=--upgrade` takes the newest of
everything that pyproject.toml and constraints/ allow. A lock names no index and no path, so it holds
wherever the same releases are served.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLATFORM = "x86_64-manylinux_2_28"
EXTRAS = ("test", "browser", "setup", "s3")
# One release each, for a process of its own: the lock's name, what it may be, and the first words of the lock.
BESIDE = {
    "streamer-0.17": (
        "runai-model-streamer>=0.17,<0.18",
        "The Run:ai streamer whose tensors are owned, for a process of its own.",
    ),
}
NO_WHEEL_HERE = "torch's CPU build for this Python was not to be had where this was resolved: untried."


def header(kind: str, python: str, note: str) -> str:
    """The comment lines that a lock starts with."""
    lines = [f"{kind}, Python {python}, Linux x86_64. Made by `make lock`; do not edit.", note]
    return "".join(f"# {line}\n" for line in lines if line)


def compile_pins(kind: str, python: str, kept: Path, options: list[str], overrides: str = "") -> list[str]:
    """Resolve one lock with uv and return its `name==version` lines; raises on an unsolvable set."""
    with tempfile.TemporaryDirectory() as folder:
        override_file = Path(folder) / "overrides.txt"
        override_file.write_text(overrides)
        output = Path(folder) / "lock.txt"
        if kept.exists():
            output.write_text(kept.read_text())
        command = [uv(), "pip", "compile", "pyproject.toml", "--output-file", str(output)]
        command += [part for extra in EXTRAS for part in ("--extra", extra)]
        command += ["--python-version", python, "--python-platform", PLATFORM, "--no-python-downloads"]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
        if overrides:
            command += ["--override", str(override_file)]
        else:
            command += ["--constraint", f"constraints/{kind}.txt"]
        if os.environ.get("PIP_FIND_LINKS"):
            command += ["--find-links", os.environ["PIP_FIND_LINKS"]]
        subprocess.run([*command, *options], cwd=ROOT, check=True, stderr=subprocess.PIPE, text=True)
        return [line for line in output.read_text().splitlines() if line and not line.startswith("#")]


def uv() -> str:
    """The uv beside this Python, else the one on the PATH."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else "uv"


def needs_of_torch() -> str:
    """What the installed CPU build of torch asks for, as requirement lines."""
    return "\n".join(need for need in metadata.requires("torch") or [] if "extra ==" not in need)


def pins_without_torch(python: str, kept: Path, options: list[str]) -> list[str]:
    """A CPU lock where torch's wheel for `python` cannot be seen: everything else resolved, torch added.

    torch is overridden away and its own needs stand in for it, taken from the build that is installed.
    """
    pin = (ROOT / "constraints/cpu.txt").read_text().splitlines()[-1]
    overrides = 'torch; python_version < "3"\n' + needs_of_torch()
    with tempfile.TemporaryDirectory() as folder:
        needs = Path(folder) / "torch-needs.txt"
        needs.write_text(needs_of_torch())
        pins = compile_pins("cpu", python, kept, [str(needs), *options], overrides)
    return sorted([*pins, pin], key=lambda line: line.split("==")[0])


def write_lock(kind: str, python: str, options: list[str]) -> None:
    """Resolve one lock and write it beside, then rename it into place."""
    path = ROOT / "locks" / f"{kind}-py{python.replace('.', '')}.txt"
    note = ""
    try:
        pins = compile_pins(kind, python, path, options)
    except subprocess.CalledProcessError as fault:
        if kind != "cpu" or "torch" not in fault.stderr:
            raise SystemExit(f"{path.name}: {fault.stderr}") from None
        note = NO_WHEEL_HERE
        pins = pins_without_torch(python, path, options)
    loose = [line for line in pins if not re.fullmatch(r"[a-z0-9.-]+==[^\s/]+", line)]
    if loose:
        raise SystemExit(f"{path.name}: not a plain pin: {loose[0]}")
    beside = path.with_suffix(".part")
    beside.write_text(header(kind, python, note) + "".join(f"{line}\n" for line in pins))
    beside.replace(path)
    print(f"{path.relative_to(ROOT)}: {len(pins)} packages. {note}")


def write_lock_beside(name: str, options: list[str]) -> None:
    """Resolve the lock of one release that is installed beside the environment, without its needs."""
    requirement, words = BESIDE[name]
    path = ROOT / "locks" / f"{name}.lock"
    with tempfile.TemporaryDirectory() as folder:
        asked, output = Path(folder) / "asked.txt", Path(folder) / "lock.txt"
        asked.write_text(requirement)
        if path.exists():
            output.write_text(path.read_text())
        command = [uv(), "pip", "compile", str(asked), "--no-deps", "--output-file", str(output)]
        command += ["--python-platform", PLATFORM, "--no-header", "--no-annotate"]
        command += ["--no-emit-index-url", "--no-emit-find-links", "--quiet"]
        if os.environ.get("PIP_FIND_LINKS"):
            command += ["--find-links", os.environ["PIP_FIND_LINKS"]]
        subprocess.run([*command, *options], cwd=ROOT, check=True)
        (pin,) = (line for line in output.read_text().splitlines() if line and not line.startswith("#"))
    beside = path.with_suffix(".part")
    beside.write_text(f"# {words} Made by `make lock`; do not edit.\n{pin}\n")
    beside.replace(path)
    print(f"{path.relative_to(ROOT)}: {pin}")


def main(options: list[str]) -> None:
    for kind in ("cpu", "gpu"):
        for python in ("3.11", "3.12"):
            write_lock(kind, python, options)
    for name in BESIDE:
        write_lock_beside(name, options)


if __name__ == "__main__":
    main(sys.argv[1:])
