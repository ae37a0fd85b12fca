"""Make .venv, exactly as the lock of this machine says. Needs nothing but Python's standard library.

The Makefile calls it before everything else. A finished environment carries a stamp; when the stamp fits,
the call returns at once. The stamp is written last, so an interrupted install is seen and made again. A second
release of a package, which a lesson compares with the first, lies in .venv/beside, with a stamp of its own.

    PYTHON=python3.12            the Python to use (3.11 or 3.12; otherwise the first one on the PATH)
    GPTOSS_LAB_DEVICE=cpu|gpu    which lock; otherwise gpu where `nvidia-smi` answers

pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf, ...) are heeded, by uv too.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from installer import Installer, SetupError, install, install_beside, is_beside, run

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "gptoss-lab.json"
MAKING = VENV / "gptoss-lab.making"
REMOVING = ROOT / ".venv.removing"
BESIDE = ("streamer-0.17",)  # releases that one lesson runs in a process of its own
PYTHONS = ("3.11", "3.12")
NEEDED_GIB = {"cpu": 4, "gpu": 10}


def main() -> int:
    """Make .venv if it is missing or out of date; return the exit code."""
    try:
        check_system(platform.system(), platform.machine())
        with one_at_a_time():
            if not is_up_to_date():
                make()
            make_beside()
    except SetupError as fault:
        print(f"set-up: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up: stopped. The next call starts it again.", file=sys.stderr)
        return 130
    return 0


def check_system(system: str, machine: str) -> None:
    """Refuse a machine for which there are no wheels."""
    if system != "Linux":
        raise SetupError(
            f"this is {system}; triton and the Run:ai streamer have wheels for Linux only. "
            "Use a Linux machine, WSL 2 or a Linux container."
        )
    if machine not in ("x86_64", "AMD64"):
        raise SetupError(f"this is {machine}; the locks are for x86_64. Use an x86_64 machine.")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two makes in two terminals take turns: the lock lies on this very file."""
    import fcntl  # here, so that another system gets this script's words and not an ImportError

    with open(__file__) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("set-up: another make is at work on .venv; waiting for it.", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield


# ---- is there anything to do? ------------------------------------------------------------------------------


def is_up_to_date() -> bool:
    """Whether the stamp in .venv fits the project, the machine and what the caller asks for."""
    try:
        stamp = json.loads(STAMP.read_text())
        python = stamp["python"]
        asked = os.environ.get("PYTHON")
        if asked and python_version(asked) != python:
            return False
        kind = os.environ.get("GPTOSS_LAB_DEVICE") or stamp["kind"]
        if stamp.pop("driver") != has_driver_file() and not os.environ.get("GPTOSS_LAB_DEVICE"):
            kind = device_kind()
        return stamp == make_stamp(kind, python) and os.access(VENV / "bin" / "python", os.X_OK)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def make_stamp(kind: str, python: str) -> dict[str, object]:
    """What the environment depends on."""
    return {
        "kind": kind,
        "python": python,
        "root": hashlib.sha256(str(ROOT).encode()).hexdigest()[:16],  # a moved venv does not work
        "lock": hashlib.sha256(lock_path(kind, python).read_bytes()).hexdigest(),
        "project": hashlib.sha256(project_text().encode()).hexdigest(),
    }


def project_text() -> str:
    """The part of pyproject.toml that an install depends on: all before the tools' settings."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    kept: list[str] = []
    takes = True
    for line in lines:
        if line.startswith("["):
            takes = line.startswith(("[project", "[build-system", "[tool.setuptools"))
        if takes and line.strip() and not line.lstrip().startswith("#"):
            kept.append(line)
    return "\n".join(kept)


def lock_path(kind: str, python: str) -> Path:
    return ROOT / "locks" / f"{kind}-py{python.replace('.', '')}.txt"


def has_driver_file() -> bool:
    """A quick sign of an NVIDIA driver: `nvidia-smi` may take seconds, and is asked when this changes."""
    return any(Path(path).exists() for path in ("/proc/driver/nvidia/version", "/dev/dxg"))


def device_kind() -> str:
    """`cpu` or `gpu`: what GPTOSS_LAB_DEVICE says, else whether `nvidia-smi` answers."""
    asked = os.environ.get("GPTOSS_LAB_DEVICE", "")
    if asked in ("cpu", "gpu"):
        return asked
    if asked:
        raise SetupError(f"GPTOSS_LAB_DEVICE is {asked!r}: set it to cpu or gpu, or unset it.")
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "gpu" if found.returncode == 0 and "GPU" in found.stdout else "cpu"


# ---- Python ------------------------------------------------------------------------------------------------


def python_version(command: str) -> str | None:
    """`3.11` for a command that is Python 3.11; None if it does not run."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        # A shim of a version manager can be on the PATH and still not run.
        return subprocess.check_output([command, "-I", "-S", "-c", ask], text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def find_python() -> tuple[str, str]:
    """A command for Python 3.11 or 3.12, and its version."""
    asked = os.environ.get("PYTHON")
    seen = []
    for command in [asked] if asked else ["python3.11", "python3.12", "python3", "python"]:
        version = python_version(command)
        if version in PYTHONS:
            return command, version
        seen.append(f"{command} is {version}" if version else f"no {command}")
    raise SetupError(
        f"Python 3.11 or 3.12 is needed ({', '.join(seen)}). Install one, or name it: "
        "make run PYTHON=/path/to/python3.11"
    )


# ---- making it ---------------------------------------------------------------------------------------------


def make() -> None:
    """Remove what is there and install the lock of this machine; the stamp comes last."""
    kind = device_kind()
    command, python = find_python()
    lock = lock_path(kind, python)
    check_room(kind)
    remove_old()
    count = sum("==" in line for line in lock.read_text().splitlines())
    print(
        f"set-up: making .venv: Python {python}, {kind}, {count} packages from {lock.relative_to(ROOT)}",
        flush=True,
    )
    VENV.mkdir()
    MAKING.touch()
    run([command, "-m", "venv", "--without-pip", str(VENV)], "cannot make a virtual environment")
    install(Installer(VENV, lock), lock, ROOT)
    part = STAMP.with_suffix(".part")
    stamp = {**make_stamp(kind, python), "driver": has_driver_file()}
    part.write_text(json.dumps(stamp, indent=1))
    part.replace(STAMP)
    MAKING.unlink()
    print("set-up: .venv is ready.", flush=True)


def make_beside() -> None:
    """Add what lies beside the environment: a folder that is not on the path for each lock locks/NAME.lock."""
    for name in BESIDE:
        lock, folder = ROOT / "locks" / f"{name}.lock", VENV / "beside" / name
        if not is_beside(lock, folder):
            stamp = json.loads(STAMP.read_text())
            print(f"set-up: adding {lock.relative_to(ROOT)}, in a folder of its own", flush=True)
            install_beside(Installer(VENV, lock_path(stamp["kind"], stamp["python"])), lock, folder)


def check_room(kind: str) -> None:
    free = shutil.disk_usage(ROOT).free / 2**30
    if free < NEEDED_GIB[kind] and not VENV.exists():
        raise SetupError(f"{free:.1f} GiB of disk are free, {NEEDED_GIB[kind]} are needed: make room.")


def remove_old() -> None:
    """Remove an environment that this script made, whole or half; refuse to touch another one."""
    if REMOVING.exists():
        shutil.rmtree(REMOVING)
    if not VENV.exists() and not VENV.is_symlink():
        return
    if not (STAMP.exists() or MAKING.exists() or (VENV.is_dir() and not any(VENV.iterdir()))):
        raise SetupError(".venv was not made by this project: move it away, or remove it with `make clean`.")
    # Renamed first: half removed it would not be known for ours.
    VENV.rename(REMOVING)
    shutil.rmtree(REMOVING)


if __name__ == "__main__":
    sys.exit(main())
