"""The preflight does what a lesson does, ends in one verdict and tells nothing private."""

from __future__ import annotations

import getpass
import json
import sys

import pytest
from typer.testing import CliRunner

from gptoss_lab.cli import app
from gptoss_lab.course import doctor, preflight
from gptoss_lab.course.doctor_checks import FAIL, OK, WARN, Finding
from gptoss_lab.weights.limits import CONCURRENCY_VARIABLE, LIMIT_VARIABLE

GOOD = [Finding(OK, "Python", "3.11.7"), Finding(WARN, "widgets", "not installed; a twin", "pip install ipywidgets")]


@pytest.fixture
def quick(monkeypatch):
    """The screen with given findings, without looking at the machine."""

    def show(findings, smokes):
        monkeypatch.setattr(preflight, "run_checks", lambda: findings)
        monkeypatch.setattr(preflight, "run_smoke", lambda name: smokes[name])
        return CliRunner().invoke(app, ["preflight"])

    return show


@pytest.mark.parametrize("name", preflight.SMOKES)
def test_a_smoke_does_the_real_thing(name):
    finding = preflight.run_smoke(name)
    assert finding.status == OK, finding
    assert {"one load": "' Paris.' from 155 streamed tensors", "one routing": "4 of 32 experts"}[name] in finding.found


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os; os.abort()", "ended with status -6"),
        ("print('nonsense'); raise SystemExit(3)", "ended with status 3"),
        ("import a_module_that_is_not_there", "No module named"),
        ("print([1])", "ended with status 0"),
    ],
)
def test_a_smoke_that_crashes_is_a_finding(program, said):
    finding = preflight.run_smoke("one load", [sys.executable, "-c", program])
    assert finding.status == FAIL and said in finding.found and finding.mend


def test_a_smoke_that_hangs_is_a_finding():
    finding = preflight.run_smoke("one load", [sys.executable, "-c", "import time; time.sleep(60)"], seconds=0.5)
    assert finding.status == FAIL and "did not end" in finding.found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (LIMIT_VARIABLE, "1GiB"),
        (CONCURRENCY_VARIABLE, "abc"),
        (CONCURRENCY_VARIABLE, "0"),
    ],
)
def test_a_bad_setting_in_the_environment_is_named(monkeypatch, capsys, name, value):
    monkeypatch.setenv(name, value)
    preflight.run_one("one load")
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == FAIL
    assert name in said["text"] and repr(value) in said["text"] and "unset it" in said["text"]
    assert said["mend"] == ""  # the error says it already; there is nothing to report


def test_a_wrong_answer_of_the_model_fails(monkeypatch, capsys):
    monkeypatch.setattr(preflight, "ANSWER", " Rome.")
    preflight.run_one("one load")
    assert '"status": "FAIL"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("findings", "load", "last", "status"),
    [
        (GOOD[:1], OK, "READY", 0),
        (GOOD, OK, "READY, with a warning about widgets", 0),
        (GOOD, FAIL, "NOT READY: one load", 1),
        ([*GOOD, Finding(FAIL, "triton", "not installed", "pip install triton")], OK, "NOT READY: triton", 1),
    ],
)
def test_the_last_line_is_the_verdict(quick, findings, load, last, status):
    smokes = {"one load": Finding(load, "one load", "1.0 s"), "one routing": Finding(OK, "one routing", "1.0 s")}
    said = quick(findings, smokes)
    assert said.stdout.splitlines()[-1] == last and said.exit_code == status


def test_a_line_is_short_where_all_is_well_and_whole_where_it_is_not():
    long = "torch 2.13.0 of a kind that takes " + "many " * 20
    assert len(preflight.in_short(Finding(OK, "torch", long))) == preflight.WIDTH
    assert preflight.in_short(Finding(OK, "torch", "2.13; and more")).endswith("2.13")
    shown = preflight.in_short(Finding(FAIL, "torch", f"{long}; the end", "pip install torch"))
    assert "the end" in shown and shown.endswith("-> pip install torch")


def test_nothing_private_is_shown(quick, monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "josephine")
    private = Finding(FAIL, "one load", "OSError: /home/josephine/course/data/model.safetensors of josephine")
    said = quick(GOOD, {"one load": private, "one routing": Finding(OK, "one routing", "1.0 s")})
    assert "josephine" not in said.stdout and "/home" not in said.stdout and "model.safetensors" in said.stdout


def test_it_fits_on_one_screen():
    assert 1 + len(doctor.CHECKS) + len(preflight.SMOKES) + 1 <= 24
