"""Put the packages of a lock into a virtual environment: by uv where it works, else by pip.

Part of make_venv.py. Python's standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# The one host that the project names: PyTorch's own index of CPU builds.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# pip's setting, and how uv spells it.
UV_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
BESIDE_STAMP = "gptoss-lab.lock"


class SetupError(Exception):
    """What stands in the way, and what to do about it."""


class NotFound(SetupError):
    """The configured index has no such release."""


class Installer:
    """Installs into .venv with uv, or with pip where uv does not work.

    uv reads none of pip's settings, so they are handed on.
    """

    def __init__(self, venv: Path, lock: Path) -> None:
        self.venv = venv
        self.python = str(self.venv / "bin" / "python")
        self.uv = shutil.which("uv")
        self.has_pip = succeeds([self.python, "-m", "ensurepip", "--default-pip"])
        self.settings = pip_settings(self.python)
        if not self.uv and not self.has_pip:
            raise SetupError("neither uv nor pip can be had: install uv, or on Debian `apt install python3-venv`.")
        if not self.uv:
            pin = next((line for line in lock.read_text().splitlines() if line.startswith("uv==")), "uv")
            if succeeds([self.python, "-m", "pip", "install", "--quiet", pin]):
                self.uv = str(self.venv / "bin" / "uv")

    def install(self, *arguments: str, index: str | None = None, try_pip: bool = True) -> None:
        """Install by uv and, if that fails, by pip; NotFound if they say that a release does not exist."""
        faults = []
        if self.uv:
            uv = [self.uv, "pip", "install", "--python", self.python, "--compile-bytecode"]
            uv += uv_options(self.settings) + (["--index", index] if index else [])
            faults.append(attempt([*uv, *arguments], uv_environment(self.settings)))
        if self.has_pip and faults != [""] and (try_pip or not is_missing(faults)):
            pip = [self.python, "-m", "pip", "install"] + (["--extra-index-url", index] if index else [])
            faults.append(attempt([*pip, *arguments], dict(os.environ)))
        if "" in faults:
            return
        message = (
            f"could not install {arguments[-1]}: what was said stands above. Behind a mirror, name it: "
            "PIP_INDEX_URL for an index, PIP_FIND_LINKS for a folder of wheels."
        )
        raise (NotFound if is_missing(faults) else SetupError)(message)


def is_missing(faults: list[str]) -> bool:
    """Whether the words of uv or pip say that the release does not exist where they looked."""
    signs = (
        "no version of",
        "no wheels with",
        "not found in the package registry",
        "No matching distribution",
    )
    return any(sign in fault for fault in faults for sign in signs)


def install(installer: Installer, lock: Path, project: Path) -> None:
    """Install torch by itself, then the rest of the lock, then this project."""
    torch = next(line for line in lock.read_text().splitlines() if line.startswith("torch=="))
    # Only torch may come from PyTorch's index, and only the CPU build: the pin carries +cpu.
    is_cpu_build = torch.endswith("+cpu")
    try:
        installer.install("--no-deps", torch, try_pip=not is_cpu_build)
    except NotFound:
        if not is_cpu_build:
            raise
        print(f"set-up: {torch} is not on the configured index; asking {TORCH_CPU_INDEX}", flush=True)
        installer.install("--no-deps", torch, index=TORCH_CPU_INDEX)
    # A lock is complete, so there is nothing to resolve.
    installer.install("--no-deps", "-r", str(lock))
    # The build backend is in the lock: no second environment, no download.
    installer.install("--no-deps", "--no-build-isolation", "-e", str(project))


def is_beside(lock: Path, folder: Path) -> bool:
    """Whether the release of a lock lies in a folder: the lock's text is left there when it is in."""
    try:
        return (folder / BESIDE_STAMP).read_text() == lock.read_text()
    except OSError:
        return False


def install_beside(installer: Installer, lock: Path, folder: Path) -> None:
    """Install the one release that a lock pins into a folder of its own; what it needs is in .venv."""
    (pin,) = (line for line in lock.read_text().splitlines() if line and not line.startswith("#"))
    if folder.exists():
        shutil.rmtree(folder)
    installer.install("--no-deps", "--target", str(folder), pin)
    part = folder / f"{BESIDE_STAMP}.part"
    part.write_text(lock.read_text())
    part.replace(folder / BESIDE_STAMP)


def pip_settings(python: str) -> dict[str, str]:
    """pip's settings by name, from its files and from PIP_*; the environment wins, as in pip."""
    settings: dict[str, str] = {}
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True)
    lines = listed.stdout.splitlines() if listed.returncode == 0 else []
    for prefix in ("global.", "install."):
        for line in lines:
            if line.startswith(prefix) and "=" in line:
                name, value = line[len(prefix) :].split("=", 1)
                settings[name] = value.strip("'\"")
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value
    return settings


def uv_options(settings: dict[str, str]) -> list[str]:
    """pip's settings in uv's words. Several indexes count alike, as they do for pip."""
    options = ["--index-strategy", "unsafe-best-match"]
    for name, option in UV_OPTIONS.items():
        for value in settings.get(name, "").replace("\\n", " ").split():
            options += [option, value]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    return options


def uv_environment(settings: dict[str, str]) -> dict[str, str]:
    environment = dict(os.environ)
    if "cert" in settings:
        environment.setdefault("SSL_CERT_FILE", settings["cert"])
    if "default-timeout" in settings:
        environment.setdefault("UV_HTTP_TIMEOUT", settings["default-timeout"])
    return environment


# ---- running programs --------------------------------------------------------------------------------------


def attempt(command: list[str], environment: dict[str, str]) -> str:
    """Run an installer, showing what it says as it says it; `` if it succeeded, else its words."""
    said = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            said.append(line)
            if not line.lstrip().startswith(("+ ", "~ ", "- ", "Requirement already satisfied")):
                print("  " + line, end="", flush=True)
    return "" if process.returncode == 0 else "".join(said) or "failed without a word"


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def run(command: list[str], fault: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SetupError(f"{fault}: {(result.stderr or result.stdout).strip()[-500:]}")
