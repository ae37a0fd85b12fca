"""What the doctor looks at: real processes and files, with faults planted before the real packages."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gptoss_lab.course import doctor, doctor_facts, doctor_probe
from gptoss_lab.course.doctor_checks import FAIL, OK, WARN


def run_doctor(*plants: Path, **environment: str) -> str:
    """The report of a doctor in a process of its own, which finds the plants before the real packages."""
    path = os.pathsep.join([*map(str, plants), str(doctor_facts.ROOT)])
    command = [sys.executable, "-m", "gptoss_lab.course.doctor"]
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == len(doctor.CHECKS) + 1
    assert result.returncode == any(line.startswith(FAIL) for line in result.stdout.splitlines())
    return result.stdout


def line_of(report: str, check: str) -> str:
    return next(line for line in report.splitlines() if line.split()[1] == check)


def plant(folder: Path, module: str, text: str, name: str, version: str) -> None:
    """Put an importable module and the metadata of the package that installed it into `folder`."""
    path = folder / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_planted_packages_are_seen_by_the_real_doctor(tmp_path: Path) -> None:
    plant(tmp_path, "triton_kernels/__init__.py", "", "triton-kernels", "0.1.0")
    plant(
        tmp_path,
        "runai_model_streamer/__init__.py",
        "SafetensorsStreamer = 1",
        "runai-model-streamer",
        "0.17.1",
    )
    plant(tmp_path, "torch/__init__.py", "import os; os.abort()", "torch", "2.13.0")
    report = run_doctor(tmp_path, TRITON_INTERPRET="true")
    assert "another library of that name" in line_of(report, "triton_kernels")
    assert line_of(report, "streamer").startswith(WARN)
    assert "ended the process" in line_of(report, "torch")
    assert line_of(report, "TRITON_INTERPRET").startswith(WARN)


def test_the_doctor_finds_this_environment_able() -> None:
    report = run_doctor(TRITON_INTERPRET="1")
    for check in ("Python", "torch", "triton", "triton_kernels", "streamer", "widgets"):
        assert line_of(report, check).startswith(OK), report
    assert str(Path.home()) not in report and str(doctor_facts.ROOT) not in report


def test_the_second_streamer_is_seen_where_it_lies_and_missed_where_not(tmp_path: Path) -> None:
    plant(tmp_path, "runai_model_streamer/__init__.py", "import os; os.abort()", "runai-model-streamer", "0.17.8")
    there = run_doctor(GPTOSS_LAB_STREAMER_017=str(tmp_path))
    gone = run_doctor(GPTOSS_LAB_STREAMER_017=str(tmp_path / "none"))
    (line,) = [line for line in there.splitlines() if "newer streamer" in line]
    assert line.startswith(OK) and "0.17.8" in line
    (line,) = [line for line in gone.splitlines() if "newer streamer" in line]
    assert line.startswith(WARN) and line.endswith("-> make venv")


def test_how_triton_was_imported_is_read_from_triton_itself() -> None:
    ask = "import triton, os; os.environ['TRITON_INTERPRET'] = {late!r}; "
    ask += "from gptoss_lab.course.doctor_facts import how_triton_was_loaded as ask; print(ask())"
    seen = []
    for early, late in (("0", "1"), ("1", "0")):
        environment = {**os.environ, "PYTHONPATH": str(doctor_facts.ROOT), "TRITON_INTERPRET": early}
        command = [sys.executable, "-c", ask.format(late=late)]
        seen.append(subprocess.check_output(command, env=environment, text=True).strip())
    assert seen == ["compiler", "interpreter"]


def test_checksums_tell_right_changed_and_missing_files_apart(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"{}").hexdigest()
    (tmp_path / "a.json").write_bytes(b"{}")
    (tmp_path / "b.json").write_bytes(b"{ }")
    listing = tmp_path / "checksums.sha256"
    listing.write_text(f"{digest}  a.json\n{digest} *b.json\n{digest}  c.json\n")
    assert doctor_facts.compare_checksums(listing) == {
        "a.json": "ok",
        "b.json": "differs",
        "c.json": "missing",
    }
    assert doctor_facts.compare_checksums(tmp_path / "none") is None


def test_widgets_switched_off_in_a_page_configuration_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "labconfig" / "page_config.json"
    settings.parent.mkdir()
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    seen = []
    for off in (False, True):
        settings.write_text(json.dumps({"disabledExtensions": {doctor_facts.WIDGETS: off}}))
        seen.append(doctor_facts.widgets_are_disabled())
    assert seen == [False, True]


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("print('noise'); print('{\"version\": \"1\"}')", {"version": "1"}),
        ("print('noise')", {"error": "importing it ended the process (exit code 0)"}),
        ("import os; os.abort()", {"error": "importing it ended the process (exit code -6)"}),
        ("print('[1]'); raise SystemExit(3)", {"error": "importing it ended the process (exit code 3)"}),
    ],
)
def test_what_became_of_a_probe_is_told(code: str, seen: dict) -> None:
    command = [sys.executable, "-c", code]
    assert doctor_facts.read_probe(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) == seen


def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_facts, "PROBE_SECONDS", 0.2)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.PIPE, text=True)
    assert "took over" in doctor_facts.read_probe(child)["error"]
    assert child.returncode is not None


def test_every_library_has_its_probe() -> None:
    assert set(doctor_facts.LIBRARIES) == set(doctor_probe.PROBES)
