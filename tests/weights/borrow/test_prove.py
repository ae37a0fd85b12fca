"""The proof: a late read ends the child with its line and its tensor; nothing else does; nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
import runai_model_streamer
from settled import Files

from gptoss_lab.weights.borrow import Proof, ProveError, prove, proving
from gptoss_lab.weights.borrow.__main__ import main
from gptoss_lab.weights.plan import plan

START = """
import os, sys, threading
import numpy, torch
from gptoss_lab.weights.streaming import stream
weights = stream(sys.argv[1], memory_limit=0, concurrency=1)
"""


def proof_of(files: Files, tmp_path: Path, code: str, **options) -> Proof:
    script = tmp_path / "loader.py"
    script.write_text(START + textwrap.dedent(code))
    env = {"PYTHONPATH": os.pathsep.join(sys.path)} | options.pop("env", {})
    return prove([script, files.path], env=env, timeout=options.pop("timeout", 120), **options)


def test_a_right_loader_ends_well_and_its_last_request_stays_readable(files: Files, tmp_path: Path) -> None:
    proof = proof_of(files, tmp_path, "last = [(n, t.clone(), t) for n, t in weights][-1]; print(last[2].sum().item())")
    assert proof.holds and proof.returncode == 0 and str(proof) == "nothing was read late"
    assert float(proof.stdout) == files.stored[plan(files.path, 0).slots[-1].name].sum().item()


def test_late_reads_in_every_process_and_form_are_found_with_line_and_tensor(files: Files, tmp_path: Path) -> None:
    code = """
    def read_tensor(kept): kept[3][1].clone()
    def read_array(arrays): return arrays[5].sum()
    def in_thread(kept):
        thread = threading.Thread(target=read_tensor, args=(kept,)); thread.start(); thread.join()
    kept = list(weights)
    arrays = [tensor.view(torch.uint8).numpy() for _, tensor in kept]
    for job in (read_tensor, read_array, in_thread):
        pid = os.fork()
        if pid == 0:
            job(arrays if job is read_array else kept)
            os._exit(0)
        print(pid, os.waitpid(pid, 0)[1])
    """
    proof = proof_of(files, tmp_path, code)
    assert proof.returncode == 0, proof.stderr
    pids, signals = zip(*(map(int, line.split()) for line in proof.stdout.splitlines()), strict=True)
    assert signals == (11, 11, 11)
    reads = {read.pid: read for read in proof.late_reads}
    names = [slot.name for slot in plan(files.path, 0).slots]
    found = [(reads[pid].tensor, Path(reads[pid].line.file).name, reads[pid].line.function) for pid in pids]
    assert found == [
        (names[3], "loader.py", "read_tensor"),
        (names[5], "loader.py", "read_array"),
        (names[3], "loader.py", "read_tensor"),
    ]
    text = (tmp_path / "loader.py").read_text().splitlines()
    assert all("kept[3]" in text[reads[pids[i]].line.number - 1] for i in (0, 2))
    assert not proof.holds and "was read at loader.py:" in str(proof)


def test_processes_that_the_command_starts_are_watched(files: Files, tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(START + "list(weights)[0][1].clone()")
    code = "import subprocess; print(subprocess.run([sys.executable, 'worker.py', sys.argv[1]]).returncode)"
    proof = proof_of(files, tmp_path, code, cwd=tmp_path)
    assert (proof.returncode, proof.stdout.strip()) == (0, "-11")
    assert [Path(read.line.file).name for read in proof.late_reads] == ["worker.py"]


def test_another_crash_is_not_called_a_late_read(files: Files, tmp_path: Path) -> None:
    proof = proof_of(files, tmp_path, "next(weights); import ctypes; ctypes.string_at(8)")
    assert proof.returncode == -11 and proof.late_reads == ()
    assert "nothing was read late, but the command ended with -11" in str(proof)


def test_an_error_of_the_command_is_its_own(files: Files, tmp_path: Path) -> None:
    proof = proof_of(files, tmp_path, "raise SystemExit('no such model')")
    assert proof.returncode == 1 and "no such model" in proof.stderr and not proof.holds


def test_a_test_under_pytest_can_be_proved(files: Files, tmp_path: Path) -> None:
    test = tmp_path / "test_loader.py"
    test.write_text(
        "from gptoss_lab.weights.streaming import stream\n"
        "def test_load():\n"
        f"    kept = list(stream({str(files.path)!r}, memory_limit=0))\n"
        "    assert kept[0][1].clone() is not None\n"
    )
    proof = prove(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        timeout=120,
    )
    assert [(Path(read.line.file).name, read.line.number) for read in proof.late_reads] == [("test_loader.py", 4)]


def test_the_environment_s_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['HERE_TOO'] = 'yes'")
    proof = prove(["-c", "import os; print(os.environ['HERE_TOO'])"], env={"PYTHONPATH": str(tmp_path)}, timeout=60)
    assert proof.stdout == "yes\n"


def test_a_timeout_ends_the_command_and_what_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        prove(["-c", code], timeout=5)
    pid = (tmp_path / "pid").read_text()
    end = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_nothing_is_left_behind_nor_changed(files: Files, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    source = Path(runai_model_streamer.__file__).parent / "file_streamer" / "requests_iterator.py"
    before, environment = source.read_bytes(), dict(os.environ)
    assert proof_of(files, tmp_path, "list(weights)[0][1].clone()").late_reads
    assert list((tmp_path / "temporary").iterdir()) == []
    assert source.read_bytes() == before and dict(os.environ) == environment


def test_what_cannot_be_proved_is_refused(monkeypatch) -> None:
    with pytest.raises(ProveError, match="no command"):
        prove([])
    monkeypatch.setattr(proving.sys, "platform", "darwin")
    with pytest.raises(ProveError, match="darwin"):
        prove(["-c", "pass"])


def test_the_command_line(capfd, monkeypatch) -> None:
    assert main(["-c", "print('out'); raise SystemExit(3)"]) == 3
    captured = capfd.readouterr()
    assert captured.out == "out\n" and "ended with 3" in captured.err
    assert main([]) == 2 and "usage" in capfd.readouterr().err
    late = Proof(0, (proving.LateRead(1, "a", None, ()),), "", "")
    monkeypatch.setattr("gptoss_lab.weights.borrow.__main__.prove", lambda *_, **__: late)
    assert main(["-c", "pass"]) == 1
    monkeypatch.setattr("gptoss_lab.weights.borrow.__main__.prove", lambda *_, **__: Proof(-11, (), "", ""))
    assert main(["-c", "pass"]) == 139
