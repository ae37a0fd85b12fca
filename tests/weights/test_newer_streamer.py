"""The newer streamer: found where it is put, run in a child alone, and named with its remedy where it is missing."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from gptoss_lab.weights import newer_streamer
from gptoss_lab.weights.newer_streamer import (
    FOLDER_VARIABLE,
    NewerStreamerError,
    find_newer_streamer,
    run_with_newer_streamer,
    version_in,
)

ASK = "from importlib.metadata import version; print(version('runai-model-streamer'))"


def pinned() -> str:
    """The release that the lock names."""
    lines = (newer_streamer.ROOT / "locks" / "streamer-0.17.lock").read_text().splitlines()
    return next(line for line in lines if line.startswith("runai-model-streamer==")).split("==")[1]


def plant(folder: Path, version: str = "0.17.9", code: str = "") -> Path:
    """A folder that looks as if a streamer had been installed there."""
    (folder / "runai_model_streamer").mkdir(parents=True)
    (folder / "runai_model_streamer" / "__init__.py").write_text(code)
    (folder / f"runai_model_streamer-{version}.dist-info").mkdir()
    (folder / f"runai_model_streamer-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: runai-model-streamer\nVersion: {version}\n"
    )
    return folder


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without the newer streamer: an empty prefix, an empty project, no variable."""
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(newer_streamer, "ROOT", tmp_path / "project")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    return tmp_path


def test_the_set_up_has_put_the_pinned_release_beside_this_one() -> None:
    folder = find_newer_streamer()
    assert folder is not None, "run `make venv`"
    assert version_in(folder) == pinned()


def test_a_child_has_the_newer_release_and_this_process_keeps_its_own() -> None:
    assert run_with_newer_streamer(["-c", ASK]).strip() == pinned()
    assert version("runai-model-streamer") == "0.16.1" != pinned()


def test_the_child_imports_the_streamer_from_that_folder_and_the_rest_from_here() -> None:
    ask = "import runai_model_streamer, gptoss_lab, safetensors; print(runai_model_streamer.__file__)"
    assert Path(run_with_newer_streamer(["-c", ask]).strip()).is_relative_to(find_newer_streamer())


@pytest.mark.parametrize("place", ["prefix/beside/streamer-0.17", "project/.venv/beside/streamer-0.17"])
def test_it_is_found_beside_this_python_or_in_the_project(nowhere: Path, place: str) -> None:
    assert find_newer_streamer() is None
    folder = plant(nowhere / place)
    assert find_newer_streamer() == folder.resolve()


def test_the_variable_comes_first_and_alone(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(nowhere / "prefix" / newer_streamer.PLACE)
    monkeypatch.setenv(FOLDER_VARIABLE, str(plant(nowhere / "mine", "0.17.3")))
    assert version_in(find_newer_streamer()) == "0.17.3"
    assert run_with_newer_streamer(["-c", ASK]).strip() == "0.17.3"
    monkeypatch.setenv(FOLDER_VARIABLE, str(nowhere / "empty"))
    assert find_newer_streamer() is None


def test_a_folder_that_is_half_installed_does_not_count(tmp_path: Path) -> None:
    folder = plant(tmp_path / "a")
    (folder / "runai_model_streamer" / "__init__.py").unlink()
    assert version_in(folder) is None and version_in(tmp_path / "none") is None


def test_where_it_is_missing_the_remedy_is_named(nowhere: Path) -> None:
    with pytest.raises(NewerStreamerError, match=f"0.17 is not here: run `make venv`, or set {FOLDER_VARIABLE}"):
        run_with_newer_streamer(["-c", "print(1)"])


@pytest.mark.parametrize(
    ("code", "seconds", "said"),
    [
        ("raise SystemExit(3)", 60, "ended with 3: it said nothing"),
        ("raise ValueError('no such tensor')", 60, "ended with 1: ValueError: no such tensor"),
        ("import time; time.sleep(600)", 0.5, "did not end within 0.5 s"),
    ],
)
def test_a_child_that_fails_is_told_with_its_last_line(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, code: str, seconds: float, said: str
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(plant(nowhere / "mine")))
    with pytest.raises(NewerStreamerError, match=said):
        run_with_newer_streamer(["-c", code], seconds)


def test_the_child_begins_with_the_streamer_s_defaults(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(plant(nowhere / "mine")))
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", "1")
    monkeypatch.setenv("GPTOSS_LAB_HANDED_ON", "yes")
    ask = "import os; print(os.environ.get('RUNAI_STREAMER_MEMORY_LIMIT'), os.environ['GPTOSS_LAB_HANDED_ON'])"
    assert run_with_newer_streamer(["-c", ask]).split() == ["None", "yes"]
