"""The doctor's checks of the machine, torch, JupyterLab and the data; `doctor_kernels` has the others.

A check takes the facts and returns one finding. None of them looks at the machine itself.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from gptoss_lab.course.doctor_facts import Facts

OK, WARN, FAIL = "OK", "WARN", "FAIL"
GIB = 2**30
# The release of jupyterlab-widgets that goes with each major release of ipywidgets.
WIDGETS_FOR = {"8": "3", "7": "1"}


@dataclass(frozen=True)
class Finding:
    """What one check saw: `status` is OK, WARN or FAIL, `mend` the command or step that mends it."""

    status: str
    check: str
    found: str
    mend: str = ""


def pip_install(facts: Facts, *requirements: str) -> str:
    """The command that installs into this environment."""
    python = ".venv/bin/python" if facts.in_project_venv else "python"
    return " ".join([python, "-m pip install", *(shlex.quote(requirement) for requirement in requirements)])


def reinstall(facts: Facts, kind: str = "") -> str:
    """The command that makes the environment anew, for a kind of machine (cpu or gpu) if one is named."""
    make = f"{f'GPTOSS_LAB_DEVICE={kind} ' if kind else ''}make venv"
    return f"make clean && {make}" if facts.in_project_venv else f"{make}, then work in .venv"


def release(version: str) -> tuple[int, ...]:
    """`(2, 13, 0)` for `2.13.0+cpu`."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def check_python(facts: Facts) -> Finding:
    version = ".".join(str(part) for part in facts.python)
    if facts.python[:2] in ((3, 11), (3, 12)):
        return Finding(OK, "Python", version)
    return Finding(
        FAIL,
        "Python",
        f"{version}; the course needs 3.11 or 3.12",
        "make clean && make venv PYTHON=python3.11",
    )


def check_system(facts: Facts) -> Finding:
    name = f"{facts.system} {facts.machine}"
    if facts.system != "Linux":
        found = f"{name}; triton and the streamer have wheels for Linux only"
        return Finding(FAIL, "system", found, "use a Linux machine, WSL 2 or a Linux container")
    if facts.machine != "x86_64":
        return Finding(WARN, "system", f"{name}; tried on x86_64 only", "use an x86_64 machine if an install fails")
    return Finding(OK, "system", name)


def check_torch(facts: Facts) -> Finding:
    seen = facts.probed.get("torch", {})
    if "torch" not in facts.packages and "version" not in seen:
        return Finding(FAIL, "torch", "not installed", reinstall(facts))
    if "version" not in seen:
        return Finding(FAIL, "torch", seen.get("error", "could not be asked"), reinstall(facts))
    if not (2, 13) <= release(seen["version"]) < (2, 15):
        return Finding(WARN, "torch", f"{seen['version']}; the course is tried on 2.13 and 2.14", reinstall(facts))
    return Finding(OK, "torch", seen["version"])


def check_device(facts: Facts) -> Finding:
    seen = facts.probed.get("torch", {})
    hidden = facts.visible_devices is not None and facts.visible_devices.strip() in ("", "-1")
    on_cpu = "the course runs on the CPU and shows what was recorded on a GPU"
    if seen.get("cuda"):
        return Finding(OK, "device", f"{seen.get('gpu')}, CUDA {seen.get('cuda_build')}")
    if facts.nvidia_card and not facts.driver:
        mend = "install the NVIDIA driver, see that nvidia-smi answers, then " + reinstall(facts, "gpu")
        return Finding(WARN, "device", f"an NVIDIA GPU without a driver that answers; {on_cpu}", mend)
    if facts.driver and hidden:
        return Finding(WARN, "device", f"CUDA_VISIBLE_DEVICES hides the GPU; {on_cpu}", "unset CUDA_VISIBLE_DEVICES")
    if facts.driver and "version" in seen and not seen.get("cuda_build"):
        return Finding(WARN, "device", f"an NVIDIA GPU, but torch without CUDA; {on_cpu}", reinstall(facts, "gpu"))
    if facts.driver and "version" in seen:
        found = f"torch cannot use the GPU with driver {facts.driver}; {seen.get('said') or on_cpu}"
        mend = f"update the driver for CUDA {seen['cuda_build']}, or " + reinstall(facts, "cpu")
        return Finding(WARN, "device", found, mend)
    return Finding(OK, "device", f"CPU, {seen.get('threads', '?')} threads; {on_cpu}")


def check_widgets(facts: Facts) -> Finding:
    check, twins = "widgets", "figures stand in for sliders"
    lab, widgets, manager = (facts.packages.get(name) for name in ("jupyterlab", "ipywidgets", "jupyterlab-widgets"))
    missing = [name for name, version in (("jupyterlab", lab), ("ipywidgets", widgets)) if version is None]
    if missing:
        return Finding(WARN, check, f"{' and '.join(missing)} not installed; {twins}", pip_install(facts, *missing))
    if facts.widgets_disabled:
        mend = "jupyter labextension enable @jupyter-widgets/jupyterlab-manager"
        return Finding(WARN, check, f"switched off in JupyterLab's page_config.json; {twins}", mend)
    wanted = WIDGETS_FOR.get(widgets.split(".")[0])
    if manager is None or not facts.widgets_extension:
        found = f"JupyterLab {lab} does not find the extension of ipywidgets {widgets}; {twins}"
        return Finding(WARN, check, found, pip_install(facts, f"jupyterlab-widgets=={wanted or '3'}.*"))
    if wanted and manager.split(".")[0] != wanted:
        found = f"ipywidgets {widgets} needs jupyterlab-widgets {wanted}, and finds {manager}; {twins}"
        return Finding(WARN, check, found, pip_install(facts, f"jupyterlab-widgets=={wanted}.*"))
    return Finding(OK, check, f"ipywidgets {widgets} in JupyterLab {lab}")


def check_others(facts: Facts) -> Finding:
    names = "ipykernel matplotlib nbclient nbconvert nbformat numpy rich safetensors tokenizers typer".split()
    missing = [name for name in names if name not in facts.packages]
    if missing:
        return Finding(FAIL, "other packages", f"missing: {', '.join(missing)}", pip_install(facts, *missing))
    return Finding(OK, "other packages", f"all {len(names)} there")


def check_memory(facts: Facts) -> Finding:
    return check_room(
        "memory",
        facts.memory,
        fail_below=1,
        warn_below=2,
        mend="end other programs: a lesson takes about 0.5 GiB",
    )


def check_disk(facts: Facts) -> Finding:
    return check_room("disk", facts.disk, fail_below=0.5, warn_below=2, mend="make room on this disk")


def check_room(check: str, free: int | None, fail_below: float, warn_below: float, mend: str) -> Finding:
    if free is None:
        return Finding(WARN, check, "could not be read", f"see that {warn_below} GiB are free")
    found = f"{free / GIB:.1f} GiB free"
    if free < fail_below * GIB:
        return Finding(FAIL, check, found, mend)
    return Finding(WARN, check, found, mend) if free < warn_below * GIB else Finding(OK, check, found)


def check_data(facts: Facts) -> Finding:
    mend = "git checkout -- data"
    if facts.data is None:
        return Finding(FAIL, "data", "no data/checksums.sha256 beside the package", "work in a clone of the repository")
    wrong = [f"{name} {state}" for name, state in facts.data.items() if state != "ok"]
    if wrong or not facts.data:
        return Finding(FAIL, "data", ", ".join(wrong) or "data/checksums.sha256 names no file", mend)
    return Finding(OK, "data", f"{len(facts.data)} files as recorded")
