"""The counters of costs see what they claim to see."""

from __future__ import annotations

import copy
import gc

import pytest
import torch

from gptoss_lab.course.check import LiveTensors, Mismatch, ProducedWhenSeen, count_copies, expect_equal
from gptoss_lab.course.costs import paused

VALUES = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("op", "make"),
    [
        ("clone", lambda t: t.clone()),
        ("clone", lambda t: t.t().contiguous()),
        ("clone", lambda t: t.t().reshape(-1)),
        ("_to_copy", lambda t: t.to("cpu", copy=True)),
        ("_to_copy", lambda t: t.to(torch.float64)),
        ("copy_", lambda t: torch.empty(3, 4).copy_(t)),
        ("copy_", copy.deepcopy),
        ("cat", lambda t: torch.cat([t, t])),
        ("stack", lambda t: torch.stack([t])),
    ],
)
def test_a_copy_is_counted_with_its_bytes(op, make):
    with count_copies() as copies:
        result = make(VALUES)
    assert copies.by_op == {op: 1}
    assert (copies.calls, copies.bytes) == (1, result.nbytes)


@pytest.mark.parametrize(
    "borrow",
    [lambda t: t.detach(), lambda t: t.t(), lambda t: t[1:], lambda t: t.contiguous(), lambda t: t.view(-1)],
)
def test_a_view_is_no_copy(borrow):
    with count_copies() as copies:
        borrow(VALUES)
    assert (copies.calls, copies.bytes, copies.allocated) == (0, 0, 0)


@pytest.mark.parametrize("disguise", [lambda t: t + 0, lambda t: t * 1, lambda t: torch.where(t == t, t, t)])
def test_a_copy_in_disguise_shows_as_new_memory(disguise):
    with count_copies() as copies:
        disguise(VALUES)
    assert copies.calls == 0
    assert copies.allocated >= VALUES.nbytes


def test_filling_memory_allocates_nothing():
    target = torch.empty(3, 4)
    with count_copies() as copies:
        target.copy_(VALUES)
    assert (copies.calls, copies.bytes, copies.allocated) == (1, VALUES.nbytes, 0)


def test_nothing_is_counted_while_paused_or_outside():
    with count_copies() as copies:
        with paused():
            VALUES.clone()
    VALUES.clone()
    assert copies.calls == 0
    with pytest.raises(Mismatch):
        expect_equal(copies.calls, 1)


def produce(count):
    for i in range(count):
        yield f"t{i}", torch.full((4,), float(i))


def test_a_lazy_consumer_has_one_tensor_alive_and_a_list_has_all():
    live = LiveTensors()
    for _name, _tensor in live.watch(produce(5)):
        pass
    # The loop's own variable still holds the one before.
    assert (live.peak, live.peak_bytes) == (2, 32)
    live = LiveTensors()
    kept = list(live.watch(produce(5)))
    assert (live.peak, live.peak_bytes, live.alive) == (5, 80, len(kept))
    kept.clear()
    gc.collect()
    assert live.alive == 0


def test_a_consumer_that_lets_go_has_one():
    live, record = LiveTensors(), ProducedWhenSeen()
    items = (("t", torch.full((4,), float(i))) for i in range(5))
    for item in live.watch(record.produce(items)):
        assert live.alive == 1
        del item
        assert live.alive == 0
    assert live.peak == 1


def test_the_peak_outlives_what_caused_it():
    live, kept = LiveTensors(), []
    for i, (_name, tensor) in enumerate(live.watch(produce(5))):
        kept.append(tensor)
        del tensor
        if i == 2:
            kept.clear()
    assert (live.peak, live.peak_bytes, live.alive) == (3, 48, 2)


def test_a_view_keeps_memory_alive_but_not_the_object():
    by_memory, by_object = LiveTensors(), LiveTensors(by="object")
    kept = [tensor[:2].detach() for _, tensor in by_memory.watch(produce(3))]
    assert by_memory.alive == len(kept) == 3
    kept = [tensor[:2].detach() for _, tensor in by_object.watch(produce(3))]
    assert by_object.alive == 0 and len(kept) == 3


def test_objects_are_counted_where_all_share_one_buffer():
    buffer = torch.zeros(8)
    live = LiveTensors(by="object")
    kept = list(live.watch(buffer[i : i + 2] for i in range(0, 8, 2)))
    assert live.alive == len(kept) == 4
    with pytest.raises(ValueError, match="'storage'"):
        LiveTensors(by="storage")


def test_produced_when_seen_tells_lazy_from_listed():
    lazy, listed = ProducedWhenSeen(), ProducedWhenSeen()
    load = lazy.seeing(lambda name, tensor: None)
    for name, tensor in lazy.produce(produce(3)):
        load(name, tensor)
    assert lazy.seen == [("t0", 1), ("t1", 2), ("t2", 3)]
    load = listed.seeing(lambda name, tensor: None)
    for name, tensor in list(listed.produce(produce(3))):
        load(name, tensor)
    assert listed.seen == [("t0", 3), ("t1", 3), ("t2", 3)]
