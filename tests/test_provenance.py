from __future__ import annotations

import json
import subprocess

import pytest
import torch

from gptoss_lab.provenance import ROOT, current_commit, provenance, write_record


def test_a_record_says_where_it_comes_from(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", [str(ROOT / "benchmarks" / "bench.py"), "--out", "/elsewhere/a b"])
    record = provenance(commit="abc", versions={"triton_kernels": "3.5.1"})
    assert record["command"] == "python benchmarks/bench.py --out 'a b'"
    assert record["commit"] == "abc"
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["triton_kernels"] == "3.5.1"
    assert record["device"] and len(record["date"]) == 10


def test_the_commit_is_git_s_and_a_changed_tree_is_marked(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert current_commit() == "unknown"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert current_commit() == head
    (tmp_path / "new").write_text("")
    assert current_commit() == head + "+"


def test_a_record_is_whole_or_not_there(tmp_path):
    path = tmp_path / "deep" / "record.json"
    write_record(path, {"a": [1, 2]})
    assert json.loads(path.read_text()) == {"a": [1, 2]}
    with pytest.raises(TypeError):
        write_record(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": [1, 2]}
    assert [entry.name for entry in path.parent.iterdir()] == ["record.json"]
