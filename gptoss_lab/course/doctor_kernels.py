"""The doctor's checks of triton, its interpreter, triton_kernels and both releases of the streamer."""

from __future__ import annotations

import re

from gptoss_lab.course.doctor_checks import FAIL, OK, WARN, Finding, pip_install, release
from gptoss_lab.course.doctor_facts import Facts

# The pins of pyproject.toml; a test holds the two together.
TRITON = "triton==3.8.0"
KERNELS = "tokenspeed-triton-kernels==1.0.0.post20260510"
STREAMER = "runai-model-streamer==0.16.1"
# What Triton itself takes for "on"; torch and others take "1" alone.
ON = ("1", "true", "on", "yes", "y")
NUMBER = re.compile(r"\s*[-+]?\d+\s*")  # what the streamer reads in its variables


def check_triton(facts: Facts) -> Finding:
    seen = facts.probed.get("triton", {})
    installed = facts.packages.get("triton", seen.get("version"))
    mend = pip_install(facts, TRITON)
    if installed is None:
        return Finding(FAIL, "triton", "not installed", mend)
    if "error" in seen or not seen:
        return Finding(FAIL, "triton", f"{installed}, but {seen.get('error', 'it could not be asked')}", mend)
    if not seen["has_gfx1250"]:
        found = f"{installed} lacks target_info.is_hip_gfx1250, which triton_kernels needs; it came with 3.8"
        return Finding(FAIL, "triton", found, mend)
    if installed != TRITON.split("==")[1]:
        return Finding(WARN, "triton", f"{installed}; the course is tried on 3.8.0", mend)
    return Finding(OK, "triton", installed)


def check_interpreter(facts: Facts) -> Finding:
    value, check = facts.interpret, "TRITON_INTERPRET"
    gpu = bool(facts.probed.get("torch", {}).get("cuda"))
    on = value is not None and value.lower() in ON
    unset = "unset TRITON_INTERPRET, and restart the kernel"
    early = "restart the kernel, and import gptoss_lab.moe before triton"
    if value is not None and facts.triton_loaded_as == ("compiler" if on else "interpreter"):
        found = f"{value!r} was set late: triton is already imported for its {facts.triton_loaded_as}"
        return Finding(FAIL, check, found, early)
    if value is None and facts.triton_loaded_as == ("interpreter" if gpu else "compiler"):
        found = f"unset, but triton is already imported for its {facts.triton_loaded_as}"
        return Finding(FAIL, check, found, early)
    if value is None:
        return Finding(OK, check, "unset: the GPU is used" if gpu else "unset: gptoss_lab.moe sets it to 1")
    if not on and value not in ("", "0"):
        return Finding(WARN if gpu else FAIL, check, f"{value!r} is not a value that triton knows", unset)
    if not on:
        found = f"{value!r}: the interpreter is off" + ("" if gpu else ", and there is no GPU")
        return Finding(OK, check, found) if gpu else Finding(FAIL, check, found, unset)
    if value != "1":
        found = f"{value!r}: triton takes it for on, torch does not"
        return Finding(WARN, check, found, "export TRITON_INTERPRET=1")
    if gpu:
        return Finding(WARN, check, "'1': triton's kernels run in the interpreter, not on the GPU", unset)
    return Finding(OK, check, "'1'")


def check_memory_limit(facts: Facts) -> Finding:
    check, name, value = "memory limit", "RUNAI_STREAMER_MEMORY_LIMIT", facts.memory_limit
    mend = f"unset {name}, and start JupyterLab again"
    if value is None:
        return Finding(OK, check, f"{name} is unset: the streamer's default holds")
    if not NUMBER.fullmatch(value):
        return Finding(FAIL, check, f"{name} is {value!r}: the streamer reads a plain number of bytes", mend)
    return Finding(WARN, check, f"{name} is {value!r}: lessons that load at the default will differ", mend)


def check_concurrency(facts: Facts) -> Finding:
    check, name, value = "reading threads", "RUNAI_STREAMER_CONCURRENCY", facts.concurrency
    if value is None:
        return Finding(OK, check, f"{name} is unset: the streamer's default holds")
    if not (NUMBER.fullmatch(value) and int(value) >= 1):
        found = f"{name} is {value!r}: the streamer reads a number, 1 or more"
        return Finding(FAIL, check, found, f"unset {name}, and start JupyterLab again")
    return Finding(OK, check, f"{name} is {value!r}")


def generation(parts: list[str]) -> str:
    """The generation of triton_kernels that has these parts: "matmul" (3.7 on), "3.6", "3.5.1" or none."""
    if {"topk", "SparseMatrix", "matmul"} <= set(parts):
        return "matmul"
    if {"SparseMatrix", "matmul_ogs"} <= set(parts):
        return "3.6"
    return "3.5.1" if "routing" in parts else ""


def check_kernels(facts: Facts) -> Finding:
    """Which triton_kernels is installed, told by what it has: other libraries carry the name too."""
    seen, check = facts.probed.get("triton_kernels", {}), "triton_kernels"
    parts, faults = seen.get("parts", []), seen.get("faults", [])
    theirs = facts.packages.get("triton-kernels")
    ours = facts.packages.get("tokenspeed-triton-kernels")
    mend = pip_install(facts, KERNELS)
    if theirs and "topk" not in parts and not faults:
        found = f"the package triton-kernels {theirs}, another library of that name: it has no topk"
        python = mend.split(" install")[0]
        again = mend.replace(" install ", " install --force-reinstall --no-deps ")
        return Finding(FAIL, check, found, f"{python} uninstall -y triton-kernels && {again}")
    if "error" in seen and not ours:
        return Finding(FAIL, check, "not installed", mend)
    if "is_hip_gfx1250" in " ".join([*faults, seen.get("error", "")]):
        found = f"needs triton 3.8, and finds {facts.packages.get('triton', 'another')}"
        return Finding(FAIL, check, found, pip_install(facts, TRITON))
    if "error" in seen or faults or not seen:
        found = (faults or [seen.get("error", "it could not be asked")])[0]
        return Finding(FAIL, check, f"{ours or ''} cannot be imported: {found}".strip(), mend)
    name = f"tokenspeed-triton-kernels {ours}" if ours else "of a source other than the lock"
    is_of = generation(parts)
    if is_of != "matmul":
        old = f"generation {is_of}, too old" if is_of else f"no known generation, it has {parts or 'no part'}"
        return Finding(FAIL, check, f"{name}: {old}", mend)
    if ours and not theirs:
        return Finding(OK, check, f"{name}, generation matmul")
    both = f", with the package triton-kernels {theirs} in the same folder" if ours else ""
    return Finding(WARN, check, f"{name}, generation matmul{both}", mend)


def check_streamer(facts: Facts) -> Finding:
    seen, check = facts.probed.get("streamer", {}), "streamer"
    version, mend = facts.packages.get("runai-model-streamer"), pip_install(facts, STREAMER)
    if version is None:
        return Finding(FAIL, check, "runai-model-streamer is not installed", mend)
    if "error" in seen or not seen:
        return Finding(FAIL, check, f"{version}, but {seen.get('error', 'it could not be asked')}", mend)
    if version == STREAMER.split("==")[1]:
        return Finding(OK, check, f"{version}: one reused buffer, every tensor is borrowed")
    if release(version) >= (0, 17):
        found = f"{version}: tensors are owned by default, so the fault of the course does not show"
        return Finding(WARN, check, found, mend)
    return Finding(WARN, check, f"{version}; the course is tried on 0.16.1", mend)


def check_newer_streamer(facts: Facts) -> Finding:
    """The second release, in a folder of its own, that lesson 20 compares with the course's."""
    check, version = "newer streamer", facts.newer_streamer
    if version is None:
        return Finding(WARN, check, "0.17 is not there; lesson 20 shows what was recorded", "make venv")
    if release(version)[:2] != (0, 17):
        return Finding(WARN, check, f"{version}; lesson 20 is about 0.17", "make venv")
    return Finding(OK, check, f"{version}, in a folder of its own for lesson 20")
