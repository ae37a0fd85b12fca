"""What the doctor looks at: one record of this machine and this environment.

Gathering never raises, and loads neither torch nor triton into the calling process (see `doctor_probe`).
Nothing here needs more than Python 3.8, so that an old Python is named and not met by a traceback.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = (
    "torch triton tokenspeed-triton-kernels triton-kernels runai-model-streamer ipywidgets "
    "jupyterlab jupyterlab-widgets ipykernel matplotlib nbclient nbconvert nbformat numpy rich safetensors "
    "tokenizers typer"
).split()
WIDGETS = "@jupyter-widgets/jupyterlab-manager"
NVIDIA = "0x10de"
PROBE_SECONDS = 180
LIBRARIES = ("torch", "triton", "triton_kernels", "streamer")


@dataclass(frozen=True)
class Facts:
    """This machine and this environment, as far as a check may ask.

    `packages` holds installed versions by name. `probed` holds what `doctor_probe` printed, by
    library. Sizes are in bytes, None where they could not be read.
    """

    python: tuple[int, ...] = ()
    system: str = ""
    machine: str = ""
    in_project_venv: bool = False
    packages: dict[str, str] = field(default_factory=dict)
    probed: dict[str, dict] = field(default_factory=dict)
    nvidia_card: bool = False
    driver: str | None = None
    visible_devices: str | None = None
    interpret: str | None = None
    memory_limit: str | None = None  # RUNAI_STREAMER_MEMORY_LIMIT
    concurrency: str | None = None  # RUNAI_STREAMER_CONCURRENCY
    newer_streamer: str | None = None  # the release in the folder beside this environment
    triton_loaded_as: str | None = None  # "interpreter", "compiler", or None: not loaded in this process
    widgets_extension: bool = False
    widgets_disabled: bool = False
    memory: int | None = None
    disk: int | None = None
    data: dict[str, str] | None = None  # file -> "ok", "missing" or "differs"; None: no checksums


def gather() -> Facts:
    """Look at everything once. Takes a few seconds, most of them for importing torch in a child."""
    return Facts(
        python=tuple(sys.version_info[:3]),
        system=platform.system(),
        machine=platform.machine(),
        in_project_venv=Path(sys.prefix) == ROOT / ".venv",
        packages=installed_packages(),
        probed=probe_libraries(),
        nvidia_card=has_nvidia_card(),
        driver=nvidia_driver(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        interpret=os.environ.get("TRITON_INTERPRET"),
        memory_limit=os.environ.get("RUNAI_STREAMER_MEMORY_LIMIT"),
        concurrency=os.environ.get("RUNAI_STREAMER_CONCURRENCY"),
        newer_streamer=newer_streamer_version(),
        triton_loaded_as=how_triton_was_loaded(),
        widgets_extension=any((folder / WIDGETS / "package.json").is_file() for folder in extension_folders()),
        widgets_disabled=widgets_are_disabled(),
        memory=free_memory(),
        disk=free_disk(),
        data=compare_checksums(ROOT / "data" / "checksums.sha256"),
    )


def installed_packages() -> dict[str, str]:
    """Versions of the packages of the course that are installed, by name."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except Exception:  # not installed, or its metadata cannot be read
            continue
    return found


def probe_libraries() -> dict[str, dict]:
    """What `doctor_probe` says of each library, all of them asked at once."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "gptoss_lab.course.doctor_probe"]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    try:
        children = {name: subprocess.Popen([*command, name], env=environment, **quiet) for name in LIBRARIES}
    except OSError:
        return {}
    return {name: read_probe(child) for name, child in children.items()}


def read_probe(child: subprocess.Popen) -> dict:
    """The last line that a probe printed; what became of its process, as an `error`, if it printed none."""
    try:
        output = child.communicate(timeout=PROBE_SECONDS)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return {"error": f"importing it took over {PROBE_SECONDS} s"}
    try:
        seen = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        seen = None
    if not isinstance(seen, dict):
        return {"error": f"importing it ended the process (exit code {child.returncode})"}
    return seen


def newer_streamer_version() -> str | None:
    """The release of the streamer that lesson 20 runs in a process of its own; None: not there."""
    try:
        from gptoss_lab.weights.newer_streamer import find_newer_streamer, version_in

        folder = find_newer_streamer()
        return None if folder is None else version_in(folder)
    except Exception:
        return None


def how_triton_was_loaded() -> str | None:
    """Whether Triton in this process was imported for its interpreter or its compiler; None: not imported.

    Triton decides for each function when it is decorated, and for its own ones during its import. A later
    change of TRITON_INTERPRET leaves those as they are.
    """
    module = sys.modules.get("triton.language.standard")
    if module is None:
        return None
    kind = type(getattr(module, "cdiv", None)).__name__
    return {"InterpretedFunction": "interpreter", "JITFunction": "compiler"}.get(kind)


def has_nvidia_card() -> bool:
    """Whether the PCI bus shows a display or 3D controller of NVIDIA, driver or not."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        except OSError:
            continue
        if vendor.strip() == NVIDIA and kind.startswith("0x03"):
            return True
    return False


def nvidia_driver() -> str | None:
    """The version of a driver that answers."""
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.match(r"[\d.]+", answer.stdout.strip())
    return version.group() if answer.returncode == 0 and version else None


def extension_folders() -> list[Path]:
    """Where JupyterLab looks for extensions that are already built."""
    try:
        from jupyter_core.paths import jupyter_path

        return [Path(folder) for folder in jupyter_path("labextensions")]
    except Exception:
        return [Path(sys.prefix) / "share" / "jupyter" / "labextensions"]


def widgets_are_disabled() -> bool:
    """Whether a page configuration of JupyterLab switches the widgets' extension off."""
    try:
        from jupyter_core.paths import jupyter_config_path

        folders = [Path(folder) for folder in jupyter_config_path()]
    except Exception:
        folders = [Path(sys.prefix) / "etc" / "jupyter"]
    for folder in folders:
        try:
            settings = json.loads((folder / "labconfig" / "page_config.json").read_text())
            disabled = settings.get("disabledExtensions", {})
            if WIDGETS in disabled and (isinstance(disabled, list) or disabled[WIDGETS]):
                return True
        except (OSError, ValueError, AttributeError, TypeError):
            continue
    return False


def free_memory() -> int | None:
    """Bytes that a program can still get: what Linux says, or less where a container has a limit."""
    try:
        text = Path("/proc/meminfo").read_text()
        free = int(re.search(r"MemAvailable:\s+(\d+) kB", text).group(1)) * 1024
    except (OSError, AttributeError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
        cached = int(re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M).group(1))
    except (OSError, ValueError, AttributeError):
        return free  # no container, or no limit
    return min(free, limit - used + cached)


def free_disk() -> int | None:
    try:
        return shutil.disk_usage(ROOT).free
    except OSError:
        return None


def compare_checksums(listing: Path) -> dict[str, str] | None:
    """Each file of a `sha256sum` listing with "ok", "missing" or "differs"; None where there is no listing.

    Names are taken from the folder of the listing or, if they start there, from the folder above.
    """
    try:
        lines = listing.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    states = {}
    for line in lines:
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line)
        if not match:
            continue
        digest, name = match.groups()
        path = next((folder / name for folder in (listing.parent, ROOT) if (folder / name).is_file()), None)
        try:
            states[name] = "missing" if path is None else state_of(path, digest)
        except OSError:
            states[name] = "missing"
    return states


def state_of(path: Path, digest: str) -> str:
    return "ok" if hashlib.sha256(path.read_bytes()).hexdigest() == digest else "differs"
