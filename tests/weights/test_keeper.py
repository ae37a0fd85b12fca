"""Commands under a keeper end with their parent, whatever ends it, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gptoss_lab.weights.keeper import Kept

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file

from processes import running, wait_until  # noqa: E402

SLEEP = "import sys, time; print('up', flush=True); time.sleep(600)"
FORK = "import os, time; os.fork(); print('up', flush=True); time.sleep(600)"
PARENT = """
import os, sys, time
from pathlib import Path
from gptoss_lab.weights.keeper import Kept
folder = Path(sys.argv[1])
kept = Kept([[sys.executable, "-c", sys.argv[2], folder / "command"]], output=folder / "log", leftovers=[folder])
if len(sys.argv) > 3 and os.fork() == 0:  # a child that inherits the pipe to the keeper
    time.sleep(600)
log = folder / "log"
while not log.exists() or b"up" not in log.read_bytes():
    time.sleep(0.02)
print("ready", flush=True)
time.sleep(600)
"""


def start_sleeper(folder: Path, code: str = SLEEP, **options) -> Kept:
    kept = Kept([[sys.executable, "-c", code, folder]], output=folder / "log", leftovers=[folder], **options)
    log = folder / "log"
    assert wait_until(lambda: log.exists() and b"up" in log.read_bytes())
    return kept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "left").mkdir()
    return tmp_path / "left"


@pytest.mark.parametrize("code", [SLEEP, FORK], ids=["one", "with a fork"])
def test_end_kills_the_command_and_removes_what_it_left(folder: Path, code: str) -> None:
    kept = start_sleeper(folder, code)
    assert len(running(folder)) == (2 if code == FORK else 1)
    kept.end()
    assert running(folder) == [] and not folder.exists()


def test_a_forgotten_one_ends_too(folder: Path) -> None:
    kept = start_sleeper(folder)
    assert running(folder)
    del kept
    assert wait_until(lambda: not running(folder) and not folder.exists())


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("more", [[], ["with a child that holds the pipe"]], ids=["alone", "pipe held"])
def test_it_ends_with_its_parent(folder: Path, end: signal.Signals, more: list[str]) -> None:
    words = [sys.executable, "-c", PARENT, str(folder), SLEEP, *more]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert parent.stdout.readline() == b"ready\n"
        parent.send_signal(end)
        parent.wait(30)
        assert wait_until(lambda: not running(folder / "command") and not folder.exists())
    finally:
        if more:
            os.killpg(parent.pid, signal.SIGKILL)  # the child that holds the pipe
        parent.wait()
        parent.stdout.close()


def test_the_command_ends_when_the_keeper_is_killed(folder: Path) -> None:
    kept = start_sleeper(folder)
    os.kill(kept._keeper.pid, signal.SIGKILL)
    assert wait_until(lambda: not running(folder))
    assert kept.wait(30) == 128 + signal.SIGKILL
    kept.end()


def test_an_interrupt_of_the_parents_group_does_not_reach_it(folder: Path) -> None:
    kept = start_sleeper(folder)
    (pid,) = running(folder)
    assert os.getpgid(pid) not in (os.getpgrp(), os.getpgid(kept._keeper.pid))
    assert os.getpgid(kept._keeper.pid) != os.getpgrp()
    kept.end()


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (["pass"], 0),
        (["pass", "pass"], 0),
        (["raise SystemExit(3)"], 3),
        ([SLEEP, "raise SystemExit(3)"], 3),
        (["import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", SLEEP], 128 + signal.SIGSEGV),
    ],
    ids=["well", "both well", "failed", "one failed", "a signal"],
)
def test_the_exit_code_is_told_and_the_others_are_killed(folder: Path, codes: list[str], expected: int) -> None:
    commands = [[sys.executable, "-c", code, folder] for code in codes]
    kept = Kept(commands, output=folder / "log", leftovers=[folder])
    assert kept.wait(30) == expected
    assert kept.wait(0) == expected  # told once, remembered
    assert running(folder) == []
    assert folder.exists()  # so that results can be read
    kept.end()
    assert not folder.exists()


def test_waiting_ends_while_the_command_runs_on(folder: Path) -> None:
    kept = start_sleeper(folder)
    assert kept.wait(0.05) is None and running(folder)
    kept.end()


def test_the_command_gets_its_environment_and_its_output_is_kept(folder: Path) -> None:
    code = "import os; print(os.environ['COLOUR'], 'HOME' in os.environ)"
    kept = Kept([[sys.executable, "-c", code]], output=folder / "log", environment={"COLOUR": "green"})
    assert kept.wait(30) == 0
    kept.end()
    assert (folder / "log").read_text() == "green False\n"
