"""Counters that `route` leaves at zero, and calls on several streams and in several graphs at once."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
import torch

from gptoss_lab.moe import counters as counters_module
from gptoss_lab.moe.counters import CHUNK, RESERVE, Counters, counters
from gptoss_lab.moe.equivalence import assert_equivalent
from gptoss_lab.moe.fused_routing import make_plan, route
from gptoss_lab.moe.generations import interpreting
from gptoss_lab.moe.properties import ROUNDING, hard_logits
from gptoss_lab.moe.reference import reference
from gptoss_lab.moe.routing import reuse, topk

NATIVE = torch.cuda.is_available() and not interpreting()
SHAPES = [(20, 32, 4), (100, 32, 4), (256, 128, 4), (300, 32, 4), (1000, 128, 4), (3, 32, 4)]  # the last needs none

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
needs_gpu = pytest.mark.skipif(not NATIVE, reason="needs a GPU")


@pytest.fixture
def fresh(monkeypatch):
    """No device has counters yet."""
    found: dict[torch.device, Counters] = {}
    monkeypatch.setattr(counters_module, "_of_device", found)
    return found


def are_zero(pool: Counters) -> bool:
    return all(int(counter.sum()) == 0 for counter in (pool.chunk, *pool.of_stream.values()))


def test_a_counter_is_one_zero():
    counter = Counters(torch.device("cpu")).take()
    assert (counter.shape, counter.dtype, counter.item()) == ((1,), torch.int32, 0)


def test_a_stream_keeps_its_counter_and_has_it_alone():
    pool = Counters(torch.device("cpu"))
    first, second = pool._of_stream(5), pool._of_stream(6)
    assert pool._of_stream(5).data_ptr() == first.data_ptr() != second.data_ptr()
    assert pool.take().data_ptr() == pool.take().data_ptr()
    assert len({pool._of_stream(stream).data_ptr() for stream in range(100)}) == 100


def test_threads_do_not_share_a_counter():
    pool, found, start = Counters(torch.device("cpu")), {}, threading.Barrier(8)

    def take(number: int) -> None:
        start.wait()
        found[number] = [pool._of_stream(number * 100 + i).data_ptr() for i in range(100)]

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({counter for taken in found.values() for counter in taken}) == 800


def test_a_call_makes_the_next_chunk_before_captures_run_out_of_counters():
    pool = Counters(torch.device("cpu"))
    kept = pool._of_stream(5).data_ptr()
    captured = {pool._next().data_ptr() for _ in range(CHUNK - RESERVE)}
    assert len(pool.chunk) - pool.used < RESERVE
    assert pool._of_stream(5).data_ptr() == kept
    assert len(pool.chunk) - pool.used >= RESERVE
    captured |= {pool._next().data_ptr() for _ in range(RESERVE)}
    assert len(captured) == CHUNK and kept not in captured


def test_no_chunk_is_freed_while_a_graph_may_count_in_it(monkeypatch):
    """A graph holds a bare address, so that a chunk must stay although nobody holds a tensor of it."""
    arrays: list[weakref.ref] = []

    def zeros(length: int, **_) -> torch.Tensor:
        array = np.zeros(length, dtype=np.int32)
        arrays.append(weakref.ref(array))
        return torch.from_numpy(array)

    pool = Counters(torch.device("cpu"))
    monkeypatch.setattr(torch, "zeros", zeros)
    for _ in range(3):
        pool._of_stream(5)
        for _ in range(CHUNK - RESERVE + 1):
            pool._next()
    pool._of_stream(5)
    assert len(arrays) == 4
    assert all(array() is not None for array in arrays)


def test_a_device_has_one_pool(fresh):
    cpu = torch.device("cpu")
    assert counters(cpu) is counters(cpu) is fresh[cpu]


def test_counters_are_zero_after_use(fresh, logits):
    for _ in range(3):
        for tokens in (17, 40):
            x = logits(tokens, 24)
            assert make_plan(tokens, 24, 3, x.dtype).parts > 1
            assert_equivalent(route(x, 3), reference(x, 3), **ROUNDING[x.dtype])
    (pool,) = fresh.values()
    assert len(pool.of_stream) == 1
    assert are_zero(pool)


def test_a_counter_that_does_not_start_at_zero_spoils_the_result(fresh, logits):
    """What the tests above and below look for is there to be seen."""
    x = logits(17, 24)
    route(x, 3)
    (pool,) = fresh.values()
    (counter,) = pool.of_stream.values()
    counter.fill_(-100)
    with pytest.raises(AssertionError):
        assert_equivalent(route(-x, 3), reference(-x, 3), **ROUNDING[x.dtype])
    assert not are_zero(pool)


def expect(shapes: list[tuple[int, int, int]]) -> tuple[list[torch.Tensor], list]:
    """Logits for each shape, and what `reuse` makes of them; compiles `route` for them."""
    inputs = [hard_logits(tokens, experts, torch.bfloat16, seed=tokens).cuda() for tokens, experts, _ in shapes]
    expected = []
    for x, (_, experts, k) in zip(inputs, shapes, strict=True):
        expected.append(reuse(topk(x, k), experts))
        route(x, k)
    torch.cuda.synchronize()
    return inputs, expected


def hold_back(stream: torch.cuda.Stream) -> None:
    """Keep the stream busy for some milliseconds, so that what follows on several streams starts together."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)


@needs_gpu
@pytest.mark.gpu
def test_several_streams_at_once(fresh):
    inputs, expected = expect(SHAPES)
    streams = [torch.cuda.Stream() for _ in range(8)]
    results = []
    for stream in streams:
        hold_back(stream)
    for call in range(50):
        for number, stream in enumerate(streams):
            which = (call + number) % len(SHAPES)
            with torch.cuda.stream(stream):
                results.append((which, route(inputs[which], SHAPES[which][2])))
    torch.cuda.synchronize()
    assert len(results) == 8 * 50
    for which, routing in results:
        assert_equivalent(routing, expected[which])
    (pool,) = fresh.values()
    assert len(pool.of_stream) == 9  # the default stream's too
    assert are_zero(pool)


@needs_gpu
@pytest.mark.gpu
def test_several_threads_at_once(fresh):
    inputs, expected = expect(SHAPES)
    results: list[tuple[int, object]] = []

    def call(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(30):
                which = (number + i) % len(SHAPES)
                results.append((which, route(inputs[which], SHAPES[which][2])))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(results) == 4 * 30
    for which, routing in results:
        assert_equivalent(routing, expected[which])
    (pool,) = fresh.values()
    assert are_zero(pool)


def capture(x: torch.Tensor, k: int, calls: int) -> tuple[torch.cuda.CUDAGraph, list]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [route(x, k) for _ in range(calls)]
    return graph, results


def replay_at_once(graphs: list[torch.cuda.CUDAGraph], times: int) -> None:
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for stream in streams:
        hold_back(stream)
    for _ in range(times):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()


@needs_gpu
@pytest.mark.gpu
def test_several_graphs_and_eager_calls_at_once(fresh):
    inputs, expected = expect(SHAPES)
    which = [number % len(SHAPES) for number in range(8)]
    captured = [capture(inputs[i], SHAPES[i][2], calls=3) for i in which]
    hold_back(torch.cuda.current_stream())
    eager = [route(inputs[1], SHAPES[1][2]) for _ in range(20)]
    replay_at_once([graph for graph, _ in captured], times=20)
    for i, (_, results) in zip(which, captured, strict=True):
        for routing in results:
            assert_equivalent(routing, expected[i])
    for routing in eager:
        assert_equivalent(routing, expected[1])
    (pool,) = fresh.values()
    counted = sum(3 for i in which if SHAPES[i][0] > 16)
    assert pool.used == counted + len(pool.of_stream)  # a counter of its own for every captured call
    assert are_zero(pool)


@needs_gpu
@pytest.mark.gpu
def test_a_replay_routes_the_logits_of_now(fresh):
    inputs, _ = expect([(100, 32, 4)])
    x = inputs[0].clone()
    graph, (routing,) = capture(x, 4, calls=1)
    for seed in range(5):
        x.copy_(hard_logits(100, 32, torch.bfloat16, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        assert_equivalent(routing, reuse(topk(x, 4), 32))


@needs_gpu
@pytest.mark.gpu
def test_captures_before_any_eager_call(fresh):
    shapes = SHAPES[:5]
    inputs, expected = expect(shapes)
    fresh.clear()  # as if nothing had run, but the kernels are compiled
    captured = [capture(x, k, calls=2) for x, (_, _, k) in zip(inputs, shapes, strict=True)]
    (pool,) = fresh.values()
    assert len(pool.chunk) == pool.used == len(pool.of_stream) == 0  # the zeros are made in the graphs
    replay_at_once([graph for graph, _ in captured], times=20)
    for (_, results), right in zip(captured, expected, strict=True):
        for routing in results:
            assert_equivalent(routing, right)
    x = inputs[1]
    assert_equivalent(route(x, 4), expected[1])
    assert are_zero(pool) and len(pool.of_stream) == 1


@needs_gpu
@pytest.mark.gpu
def test_a_graph_outlives_the_chunk_that_its_counters_came_from(fresh):
    inputs, expected = expect(SHAPES[:2])
    (pool,) = fresh.values()
    graph, (routing,) = None, (None,)
    for chunk in range(3):  # the chunk in the middle holds the graph's counter and no stream's
        if chunk == 1:
            graph, (routing,) = capture(inputs[1], 4, calls=1)
        pool.used = CHUNK - RESERVE + 1
        route(inputs[0], 4)
    filled = [torch.full((CHUNK,), 7, dtype=torch.int32, device="cuda") for _ in range(64)]  # takes freed memory
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert_equivalent(routing, expected[1])
    assert all(bool(memory.eq(7).all()) for memory in filled)
