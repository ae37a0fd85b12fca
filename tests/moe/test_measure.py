from __future__ import annotations

import json
import subprocess

import pytest
import torch

from gptoss_lab.moe import measure
from gptoss_lab.moe.measure import (
    measure_eager,
    measure_graph,
    provenance,
    summarise,
    take_turns,
    write_record,
)


def test_every_call_is_drawn_equally_and_rounds_begin_in_turn():
    order: list[str] = []

    def sampler(name: str, value: float):
        return lambda: order.append(name) or value

    timings = take_turns({"a": sampler("a", 3.0), "b": sampler("b", 5.0)}, samples=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert (timings["a"].median_us, timings["b"].median_us) == (3.0, 5.0)
    assert timings["a"].samples == 3


def test_the_spread_is_the_inner_eighty_percent():
    timing = summarise([float(value) for value in range(10, -1, -1)])
    assert (timing.low_us, timing.median_us, timing.high_us) == (1.0, 5.0, 9.0)
    assert summarise([7.0]).low_us == summarise([7.0]).high_us == 7.0


def test_no_samples_is_refused():
    with pytest.raises(ValueError, match="samples is 0"):
        take_turns({"a": lambda: 1.0}, samples=0)


def test_an_eager_call_is_made_once_before_and_once_for_each_sample(device):
    calls: list[str] = []
    timings = measure_eager({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, samples=4)
    assert (calls.count("a"), calls.count("b")) == (5, 5)
    assert all(timing.median_us > 0 for timing in timings.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
def test_a_graph_needs_a_gpu():
    with pytest.raises(RuntimeError, match="a CUDA graph needs a CUDA device"):
        measure_graph({"a": lambda: None})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graph_replays_the_call():
    out = torch.zeros(1, device="cuda")
    timings = measure_graph({"count": lambda: out.add_(1)}, samples=5, replays=4)
    warm_ups, first = 3, 4
    assert out.item() == warm_ups + first + 5 * 4
    assert timings["count"].samples == 5


def test_a_record_says_where_it_comes_from(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["bench.py", "--out", "a b"])
    record = provenance(commit="abc")
    assert record["command"] == "python bench.py --out 'a b'"
    assert record["commit"] == "abc"
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["triton_kernels"] == "3.7 and later: SparseMatrix, matmul"
    assert record["device"] and len(record["date"]) == 10


def test_the_commit_is_git_s_and_a_changed_tree_is_marked(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert measure.current_commit() == "unknown"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert measure.current_commit() == head
    (tmp_path / "new").write_text("")
    assert measure.current_commit() == head + "+"


def test_a_record_is_whole_or_not_there(tmp_path):
    path = tmp_path / "deep" / "record.json"
    write_record(path, {"a": [1, 2]})
    assert json.loads(path.read_text()) == {"a": [1, 2]}
    with pytest.raises(TypeError):
        write_record(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": [1, 2]}
    assert [entry.name for entry in path.parent.iterdir()] == ["record.json"]
