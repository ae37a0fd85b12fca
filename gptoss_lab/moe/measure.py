"""Times of calls on a GPU, taken side by side.

Calls that are compared are measured in one run, in turns, so that a change of clocks or of load meets all
of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: the median, and the 10th and 90th percentiles as its spread."""

    median_us: float
    low_us: float
    high_us: float
    samples: int


def measure_graph(
    calls: Mapping[str, Callable[[], Any]], samples: int = 50, replays: int = 20, inside: int = 1
) -> dict[str, Timing]:
    """Capture each call in a CUDA graph and time its replays. Needs a CUDA device.

    A graph holds the call `inside` times. A sample is the time on the device of `replays` replays one behind the
    other, divided by the number of calls; the calls take turns, sample by sample. This is the work on the device, with
    nearly all of the host's share removed. The host needs some microseconds to start a graph: a call that is shorter
    wants more than one inside, and fewer replays.
    """
    require_cuda("a CUDA graph")
    replayers = {name: capture(lambda fn=fn: [fn() for _ in range(inside)]) for name, fn in calls.items()}
    samplers = {name: _graph_sampler(replay, replays, inside) for name, replay in replayers.items()}
    return take_turns(samplers, samples)


def measure_eager(calls: Mapping[str, Callable[[], Any]], samples: int = 50) -> dict[str, Timing]:
    """Time each call with the wait for the device, by the host's clock. The calls take turns, sample by
    sample.

    For small inputs this is mostly the host's time for the launches.
    """
    for fn in calls.values():
        fn()
    return take_turns({name: _eager_sampler(fn) for name, fn in calls.items()}, samples)


def take_turns(samplers: Mapping[str, Callable[[], float]], samples: int) -> dict[str, Timing]:
    """Draw `samples` values, in microseconds, from each sampler in turns; every round begins with another
    one."""
    if samples < 1:
        raise ValueError(f"samples is {samples}: pass 1 or more")
    names = list(samplers)
    drawn: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(samples):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            drawn[name].append(samplers[name]())
    return {name: summarise(values) for name, values in drawn.items()}


def summarise(values: list[float]) -> Timing:
    """Return the median and the 10th and 90th percentiles of values in microseconds."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Timing(
        median_us=statistics.median(ordered),
        low_us=ordered[round(0.1 * last)],
        high_us=ordered[round(0.9 * last)],
        samples=len(ordered),
    )


def capture(fn: Callable[[], Any]) -> Callable[[], None]:
    """Run `fn` a few times, capture it in a CUDA graph and return the replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            fn()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph.replay


def require_cuda(what: str) -> None:
    """Raise RuntimeError without a CUDA device."""
    if not torch.cuda.is_available():
        raise RuntimeError(f"{what} needs a CUDA device: there is none here, read the record in data/ instead")


def _graph_sampler(replay: Callable[[], None], replays: int, inside: int) -> Callable[[], float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        begin.record()
        for _ in range(replays):
            replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000 / (replays * inside)

    sample()
    return sample


def _eager_sampler(fn: Callable[[], Any]) -> Callable[[], float]:
    wait = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)

    def sample() -> float:
        wait()
        begin = time.perf_counter()
        fn()
        wait()
        return (time.perf_counter() - begin) * 1e6

    return sample
