"""pyproject.toml, the locks, environment.yml, the Makefile and CI ask for the same things."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gptoss_lab.cli import app
from gptoss_lab.course import doctor_kernels

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {path.stem: path for path in sorted((ROOT / "locks").glob("*.txt"))}
TARGETS = "run test lab record lint fix test-browser test-hub doctor clean lock venv help".split()
PYTORCH_CPU = "https://download.pytorch.org/whl/cpu"
SETUP_FILES = [
    *(ROOT / "locks").iterdir(),
    *(ROOT / "constraints").iterdir(),
    *(ROOT / "scripts").glob("*.py"),
    *(ROOT / name for name in ("Makefile", "environment.yml", "pyproject.toml", ".ci/run")),
    ROOT / ".pre-commit-config.yaml",
]  # fmt: skip
# The import name of a package where it is not the package's own name.
IMPORTS = {"tokenspeed-triton-kernels": "triton_kernels", "pyyaml": "yaml", "ipython": "IPython"}


def pins(lock: Path) -> dict[str, str]:
    """`name -> version` of a lock."""
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def requirements(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for, with the named extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    lines = PROJECT["project"]["dependencies"] + [line for extra in extras for line in optional[extra]]
    return [Requirement(line) for line in lines]


ALL = requirements(*PROJECT["project"]["optional-dependencies"])


def constraint(kind: str) -> Requirement:
    lines = (ROOT / "constraints" / f"{kind}.txt").read_text().splitlines()
    (line,) = [line for line in lines if not line.startswith("#")]
    return Requirement(line)


# ---- locks -------------------------------------------------------------------------------------------------


def test_there_is_a_lock_for_each_device_and_python() -> None:
    assert list(LOCKS) == ["cpu-py311", "cpu-py312", "gpu-py311", "gpu-py312"]
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.13"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_each_package_once_and_names_no_place(name: str) -> None:
    lines = LOCKS[name].read_text().splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert [line for line in pinned if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[\w.+!]+", line)] == []
    names = [line.split("==")[0] for line in pinned]
    assert names == sorted(set(names))
    assert not any(re.search(r"://|file:|(^|\s)/|--", line) for line in lines)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_what_the_project_asks_for(name: str) -> None:
    locked = pins(LOCKS[name])
    unmet = [
        str(need) for need in ALL
        if not need.specifier.contains(locked.get(canonicalize_name(need.name), "0"), prereleases=True)
    ]  # fmt: skip
    assert unmet == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_keeps_to_the_constraint_of_its_device(name: str) -> None:
    kind = name.split("-")[0]
    locked = pins(LOCKS[name])
    assert constraint(kind).specifier.contains(locked["torch"], prereleases=True)
    assert locked["torch"].endswith("+cpu") == (kind == "cpu")
    assert any(package.startswith(("nvidia-", "cuda-")) for package in locked) == (kind == "gpu")


@pytest.mark.parametrize("name", LOCKS)
def test_no_lock_names_the_other_triton_kernels(name: str) -> None:
    locked = pins(LOCKS[name])
    assert "triton-kernels" not in locked and "tokenspeed-triton-kernels" in locked


def test_the_build_backend_is_in_every_lock_so_that_the_project_installs_offline() -> None:
    (backend,) = (Requirement(line) for line in PROJECT["build-system"]["requires"])
    assert all(backend.specifier.contains(pins(lock)[backend.name]) for lock in LOCKS.values())


def test_this_environment_is_one_that_the_locks_describe() -> None:
    """A lock that was edited and never installed is seen: what the course rests on is really here."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    candidates = [pins(lock) for name, lock in LOCKS.items() if name.endswith(python)]
    chosen = [
        locked for locked in candidates
        if locked["torch"].endswith("+cpu") == version("torch").endswith("+cpu")
    ]  # fmt: skip
    exact = ["tokenspeed-triton-kernels", "runai-model-streamer", "triton", "nbval"]
    assert [{name: locked[name] for name in exact} for locked in chosen] == [{name: version(name) for name in exact}]


# ---- pyproject ---------------------------------------------------------------------------------------------


def test_the_pins_of_the_course_are_the_ones_that_the_doctor_expects() -> None:
    asked = {f"{need.name}{need.specifier}" for need in requirements()}
    assert {doctor_kernels.TRITON, doctor_kernels.KERNELS, doctor_kernels.STREAMER} <= asked
    assert {"torch<2.15,>=2.13", "nbval==0.11.0"} <= {f"{need.name}{need.specifier}" for need in ALL}
    assert "triton-kernels" not in {need.name for need in ALL}


def test_triton_is_asked_for_on_linux_only() -> None:
    (triton,) = [need for need in requirements() if need.name == "triton"]
    assert triton.marker is not None
    assert [triton.marker.evaluate({"sys_platform": system}) for system in ("linux", "darwin")] == [
        True,
        False,
    ]


def imported(*modules: Path) -> set[str]:
    """The top-level names that modules import, without Python's own."""
    names = set()
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"gptoss_lab"}


def test_every_import_of_the_package_is_asked_for() -> None:
    # The gate runs pytest, and is used where the tests are installed.
    asked = {IMPORTS.get(need.name, need.name.replace("-", "_")) for need in requirements("test", "s3")}
    optional = {"jupyter_core"}  # the doctor asks it where it is there
    assert imported(*(ROOT / "gptoss_lab").rglob("*.py")) - asked - optional == set()


def test_the_set_up_needs_nothing_but_python() -> None:
    scripts = [ROOT / "scripts" / name for name in ("make_venv.py", "installer.py", "make_locks.py")]
    assert imported(*scripts) == {"installer"}


def test_the_command_leads_to_the_package() -> None:
    assert PROJECT["project"]["scripts"] == {"gptoss-lab": "gptoss_lab.cli:app"}
    assert callable(app)


def test_files_beside_the_modules_are_packaged() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    beside = [path for path in (ROOT / "gptoss_lab").rglob("*") if path.is_file()]
    beside = [path for path in beside if path.suffix not in (".py", ".pyc")]
    assert beside, "no file beside the modules: then package-data can go"
    assert [path.name for path in beside if not any(path.match(pattern) for pattern in patterns)] == []


# ---- conda -------------------------------------------------------------------------------------------------


def test_conda_installs_the_lock_of_a_cpu_machine() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert environment["channels"][0] == "conda-forge"
    assert "python=3.11" in conda
    assert pip["pip"] == [f"--extra-index-url {PYTORCH_CPU}", "-r locks/cpu-py311.txt", "-e ."]
    assert "UNVERIFIED" in (ROOT / "environment.yml").read_text()


# ---- Makefile, CI, README ----------------------------------------------------------------------------------


def recipe(target: str) -> str:
    """The commands that make would run."""
    command = ["make", "--dry-run", "--no-print-directory", target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_exists_and_all_but_clean_make_the_environment(target: str) -> None:
    makes = "scripts/make_venv.py" in recipe(target)
    assert makes == (target not in ("clean", "help"))


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_runs_commands_that_gptoss_lab_has() -> None:
    has = set(typer.main.get_command(app).commands)
    called = {name for target in TARGETS for name in re.findall(r"/gptoss-lab ([a-z]+)", recipe(target))}
    assert {"run", "record", "gate", "lint", "doctor", "fix"} <= called
    assert called <= has


def test_ci_runs_the_commands_of_the_makefile() -> None:
    text = (ROOT / ".ci/run").read_text()
    assert (ROOT / ".ci/run").stat().st_mode & 0o100
    assert "set -euo pipefail" in text
    assert re.findall(r"^step (\S+)$", text, re.M) == ["test", "lint", "test-browser"]
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True)


def test_the_readme_names_commands_that_exist() -> None:
    readme = ROOT / "README.md"
    assert readme.exists(), "README.md is missing: pyproject.toml and the first visitor need it"
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(code_of(readme.read_text()))))
    assert {"run", "test"} <= named
    assert named <= set(TARGETS)


def code_of(markdown: str) -> list[str]:
    """The code blocks and code spans of a page."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.M | re.S)
    return blocks + re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", markdown, flags=re.M | re.S))


def test_commands_that_prose_names_exist() -> None:
    pages = [ROOT / "CONTRIBUTING.md", *(ROOT / ".github").rglob("*.yml")]
    named = set(re.findall(r"`make ([a-z][a-z-]*)", "\n".join(page.read_text() for page in pages)))
    assert named and named <= set(TARGETS)


def test_hooks_are_local_and_download_nothing() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    assert {hook["language"] for hook in hooks} == {"system"}
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "notebooks"}


def test_issue_forms_ask_for_the_doctors_output() -> None:
    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert forms
    for form in forms:
        fields = yaml.safe_load(form.read_text())["body"]
        doctor = [field for field in fields if field.get("id") == "doctor"]
        assert len(doctor) == 1 and "make doctor" in doctor[0]["attributes"]["description"], form.name


# ---- nothing of one machine --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SETUP_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_set_up_names_no_host_but_pytorchs_index_and_no_folder_of_a_machine(path: Path) -> None:
    text = path.read_text()
    hosts = set(re.findall(r"https?://[^\s\"')]+", text)) - {PYTORCH_CPU}
    assert hosts == set()
    folders = set(re.findall(r"(?<![\w./}])/(?:home|opt|root|srv|mnt|Users|work)\b", text))
    assert folders == set()
