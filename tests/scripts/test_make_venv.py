"""The maker of .venv: what it refuses, when it works again, and what it hands to uv and pip."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ROOT / "scripts"
TORCH = "torch==2.13.0+cpu"


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """make_venv.py, at work on a project of its own with two small locks."""
    monkeypatch.syspath_prepend(SCRIPTS)
    for name in ("PYTHON", "GPTOSS_LAB_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    (tmp_path / "locks").mkdir()
    for lock in ("cpu-py311", "gpu-py311"):
        (tmp_path / "locks" / f"{lock}.txt").write_text(f"# {lock}\n{TORCH}\nwheel==1.0\n")
    (tmp_path / "locks" / "streamer-0.17.lock").write_text("# a comment\nstreamer==0.17.1\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.ruff]\nline-length = 80\n')
    spec = importlib.util.spec_from_file_location("make_venv", tmp_path / "scripts" / "make_venv.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Everything but the installing itself, which these tests must not do.
    monkeypatch.setattr(module, "install", lambda installer, lock, project: None)
    monkeypatch.setattr(module, "Installer", lambda venv, lock: Bystander())
    monkeypatch.setattr(module, "find_python", lambda: (sys.executable, "3.11"))
    monkeypatch.setattr(module, "device_kind", lambda: os.environ.get("GPTOSS_LAB_DEVICE", "cpu"))
    monkeypatch.setattr(module, "has_driver_file", lambda: False)
    return module


class Bystander:
    """An installer that makes the folder that it was told to fill, and notes what it was asked for."""

    asked: list[tuple[str, ...]] = []

    def install(self, *arguments: str) -> None:
        self.asked.append(arguments)
        Path(arguments[arguments.index("--target") + 1]).mkdir(parents=True)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# ---- what it refuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "machine", "said"),
    [("Darwin", "arm64", "Linux only"), ("Windows", "AMD64", "WSL 2"), ("Linux", "aarch64", "x86_64")],
)
def test_a_machine_without_wheels_is_refused(maker: types.ModuleType, system: str, machine: str, said: str) -> None:
    with pytest.raises(maker.SetupError, match=said):
        maker.check_system(system, machine)
    maker.check_system("Linux", "x86_64")


def fake(folder: Path, name: str, text: str) -> Path:
    """An executable shell script."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.13"])
def test_another_python_is_refused_by_name(
    maker: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("PYTHON", raising=False)
    fake(tmp_path / "bin", "python3", f"echo {version}")
    fake(tmp_path / "bin", "python3.11", "exit 127")  # a version manager's shim without that version
    sys.path.insert(0, str(SCRIPTS))
    try:
        import make_venv
    finally:
        sys.path.remove(str(SCRIPTS))
    with pytest.raises(make_venv.SetupError, match=f"no python3.11.*python3 is {version}"):
        make_venv.find_python()
    fake(tmp_path / "bin", "python3.12", "echo 3.12")
    assert make_venv.find_python() == ("python3.12", "3.12")
    monkeypatch.setenv("PYTHON", "python3")
    with pytest.raises(make_venv.SetupError, match=f"python3 is {version}"):
        make_venv.find_python()


def test_an_environment_that_it_did_not_make_is_left_alone(
    maker: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "precious").touch()
    assert maker.main() == 1
    assert (tmp_path / ".venv" / "precious").exists()
    assert "make clean" in capsys.readouterr().err


def test_a_full_disk_is_named(
    maker: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(maker, "NEEDED_GIB", {"cpu": 2**40})
    assert maker.main() == 1
    assert "GiB of disk are free" in capsys.readouterr().err


# ---- when it works again -----------------------------------------------------------------------------------


def test_the_second_call_does_nothing(
    maker: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert maker.main() == 0
    assert "ready" in capsys.readouterr().out
    (tmp_path / ".venv" / "kept").touch()
    assert maker.main() == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / ".venv" / "kept").exists()


CHANGES = {
    "a pin": lambda root: edit(root / "locks/cpu-py311.txt", "wheel==1.0", "wheel==1.1"),
    "what the project asks for": lambda root: edit(root / "pyproject.toml", '"x"', '"y"'),
    "the stamp is missing": lambda root: (root / ".venv/gptoss-lab.json").rename(root / ".venv/gptoss-lab.making"),
    "the stamp is cut": lambda root: (root / ".venv/gptoss-lab.json").write_text('{"kind": "cpu"'),
    "its Python is gone": lambda root: (root / ".venv/bin/python").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_made_again_when_something_changed(maker: types.ModuleType, tmp_path: Path, change: str) -> None:
    assert maker.main() == 0
    (tmp_path / ".venv" / "old").touch()
    CHANGES[change](tmp_path)
    assert not maker.is_up_to_date()
    assert maker.main() == 0
    assert not (tmp_path / ".venv" / "old").exists()
    assert maker.is_up_to_date()


def test_settings_of_tools_change_nothing(maker: types.ModuleType, tmp_path: Path) -> None:
    maker.main()
    edit(tmp_path / "pyproject.toml", "80", "110")
    assert maker.is_up_to_date()


def test_another_device_is_another_environment(maker: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    maker.main()
    monkeypatch.setenv("GPTOSS_LAB_DEVICE", "gpu")
    assert not maker.is_up_to_date()
    maker.main()
    assert json.loads(maker.STAMP.read_text())["kind"] == "gpu"
    # What was once asked for stays until something else is asked for.
    monkeypatch.delenv("GPTOSS_LAB_DEVICE")
    assert maker.is_up_to_date()


def test_a_driver_that_came_is_noticed(maker: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    maker.main()
    monkeypatch.setattr(maker, "has_driver_file", lambda: True)
    assert maker.is_up_to_date()  # a driver that does not answer
    monkeypatch.setattr(maker, "device_kind", lambda: "gpu")
    assert not maker.is_up_to_date()


def test_an_interrupted_install_is_made_again(
    maker: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        (tmp_path / ".venv" / "half").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(maker, "install", interrupted)
        assert maker.main() == 130
    assert (tmp_path / ".venv" / "half").exists() and not maker.is_up_to_date()
    assert maker.main() == 0
    assert not (tmp_path / ".venv" / "half").exists() and maker.is_up_to_date()


def test_an_interrupted_removal_is_finished(
    maker: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path) -> None:
        """Remove the files at the top, as rmtree may have when the interrupt comes."""
        for path in folder.iterdir():
            if path.is_file():
                path.unlink()
        raise KeyboardInterrupt

    maker.main()
    edit(tmp_path / "locks/cpu-py311.txt", "wheel==1.0", "wheel==1.1")
    with monkeypatch.context() as patch:
        patch.setattr(maker.shutil, "rmtree", interrupted)
        assert maker.main() == 130
    assert maker.main() == 0
    assert maker.is_up_to_date() and not maker.REMOVING.exists()


def test_an_empty_folder_is_taken(maker: types.ModuleType) -> None:
    maker.VENV.mkdir()
    assert maker.main() == 0


# ---- beside the environment --------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What the installer was asked for, from now on."""
    monkeypatch.setattr(Bystander, "asked", [])
    return Bystander.asked


def test_a_second_release_lies_in_a_folder_of_its_own(
    maker: types.ModuleType, tmp_path: Path, asked: list[tuple[str, ...]]
) -> None:
    folder = tmp_path / ".venv" / "beside" / "streamer-0.17"
    assert maker.main() == 0
    assert asked == [("--no-deps", "--target", str(folder), "streamer==0.17.1")]
    assert maker.main() == 0
    assert len(asked) == 1


CHANGES_BESIDE = {
    "its pin": lambda root: edit(root / "locks/streamer-0.17.lock", "0.17.1", "0.17.2"),
    "it is gone": lambda root: shutil.rmtree(root / ".venv/beside"),
    "it was interrupted": lambda root: (root / ".venv/beside/streamer-0.17/gptoss-lab.lock").unlink(),
}


@pytest.mark.parametrize("change", CHANGES_BESIDE)
def test_it_is_put_there_again_and_the_environment_stays(
    maker: types.ModuleType, tmp_path: Path, asked: list[tuple[str, ...]], change: str
) -> None:
    maker.main()
    (tmp_path / ".venv" / "kept").touch()
    CHANGES_BESIDE[change](tmp_path)
    assert maker.main() == 0
    assert len(asked) == 2 and (tmp_path / ".venv" / "kept").exists()
    assert maker.main() == 0
    assert len(asked) == 2


def test_a_release_that_cannot_be_had_is_told_and_tried_again(
    maker: types.ModuleType, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, ...]]
) -> None:
    def refuse(*_: object) -> None:
        raise maker.SetupError("no such release")

    with monkeypatch.context() as patch:
        patch.setattr(Bystander, "install", refuse)
        assert maker.main() == 1
    assert maker.is_up_to_date()  # the course itself is there
    assert maker.main() == 0
    assert len(asked) == 1


# ---- uv and pip --------------------------------------------------------------------------------------------


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    import installer as module

    return module


@pytest.fixture
def tools(installer: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """An Installer whose uv and pip are scripts that write down how they were called."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    log = tmp_path / "log"
    missing = f'case "$*" in *whl/cpu*) ;; *{TORCH}*) echo "there is no version of {TORCH}"; exit 1;; esac'
    made = object.__new__(installer.Installer)
    made.uv = str(fake(tmp_path, "uv", f'echo "uv $*" >> {log}\n{missing}'))
    made.python = str(fake(tmp_path, "python", f'echo "$*" >> {log}\n{missing}'))
    made.has_pip, made.settings, made.log = True, {}, log
    return made


def lock_file(tmp_path: Path, torch: str) -> Path:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"{torch}\nwheel==1.0\n")
    return lock


def test_only_torch_may_come_from_pytorchs_index(installer: types.ModuleType, tools: object, tmp_path: Path) -> None:
    installer.install(tools, lock_file(tmp_path, TORCH), tmp_path)
    calls = tools.log.read_text().splitlines()
    asked = [call for call in calls if installer.TORCH_CPU_INDEX in call]
    # As configured, then with the index; then the lock and the project.
    assert len(calls) == 4
    assert asked == [calls[1]] and calls[1].endswith(f"--no-deps {TORCH}")
    assert all(call.startswith("uv pip install") and "--compile-bytecode" in call for call in calls)
    assert calls[3].endswith(f"--no-deps --no-build-isolation -e {tmp_path}")


def test_a_cuda_torch_is_never_looked_for_on_the_cpu_index(
    installer: types.ModuleType, tools: object, tmp_path: Path
) -> None:
    fake(tmp_path, "uv", f'echo "uv $*" >> {tools.log}; echo "there is no version of torch"; exit 1')
    fake(tmp_path, "python", "echo No matching distribution found; exit 1")
    with pytest.raises(installer.NotFound):
        installer.install(tools, lock_file(tmp_path, "torch==2.14.1"), tmp_path)
    assert installer.TORCH_CPU_INDEX not in tools.log.read_text()


def test_pip_takes_over_where_uv_fails(installer: types.ModuleType, tools: object, tmp_path: Path) -> None:
    fake(tmp_path, "uv", "echo this uv is broken; exit 2")
    installer.install(tools, lock_file(tmp_path, "torch==2.14.1"), tmp_path)
    calls = tools.log.read_text().splitlines()
    assert [call.split()[:3] for call in calls] == [["-m", "pip", "install"]] * 3


@pytest.mark.parametrize("uv", ["works", "fails"])
def test_what_lies_beside_is_installed_by_uv_or_pip(
    installer: types.ModuleType, tools: object, tmp_path: Path, uv: str
) -> None:
    if uv == "fails":
        fake(tmp_path, "uv", "exit 2")
    tools.settings = {"find-links": "wheels"}
    lock, folder = tmp_path / "beside.lock", tmp_path / "folder"
    lock.write_text("# why\nstreamer==0.17.1\n")
    for name in ("uv", "python"):  # what an installer does with --target
        script = tmp_path / name
        script.write_text(script.read_text() + f"mkdir -p {folder}\n")
    installer.install_beside(tools, lock, folder)
    (call,) = tools.log.read_text().splitlines()
    assert call.startswith("uv pip install" if uv == "works" else "-m pip install")
    assert call.endswith(f"--no-deps --target {folder} streamer==0.17.1")
    assert ("--find-links wheels" in call) == (uv == "works")  # pip reads its own settings
    assert installer.is_beside(lock, folder)


def test_a_fault_of_the_network_is_no_missing_release(
    installer: types.ModuleType, tools: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(tmp_path, "uv", f'echo "uv $*" >> {tools.log}; echo "dns error"; exit 2')
    fake(tmp_path, "python", "echo connection refused; exit 1")
    with pytest.raises(installer.SetupError, match="PIP_INDEX_URL") as raised:
        installer.install(tools, lock_file(tmp_path, TORCH), tmp_path)
    assert not isinstance(raised.value, installer.NotFound)
    assert capsys.readouterr().out.split("\n")[:2] == ["  dns error", "  connection refused"]
    assert installer.TORCH_CPU_INDEX not in tools.log.read_text()


def test_pips_settings_are_handed_to_uv(
    installer: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = one\nfind-links = a\n  b\n[install]\nextra-index-url = two three\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    options = " ".join(installer.uv_options(installer.pip_settings(sys.executable)))
    for wanted in ("--default-index one", "--find-links a --find-links b", "--index two --index three"):
        assert wanted in options
    monkeypatch.setenv("PIP_FIND_LINKS", "c")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    options = " ".join(installer.uv_options(installer.pip_settings(sys.executable)))
    assert "--find-links c" in options and "--find-links a" not in options
    assert "--no-index" in options
