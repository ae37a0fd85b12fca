from __future__ import annotations

import pytest
import torch

from gptoss_lab.moe.measure import (
    measure_eager,
    measure_graph,
    summarise,
    take_turns,
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
