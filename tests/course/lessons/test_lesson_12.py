"""The checkers of lesson 12 tell wrong answers apart, and agree with the package's planner."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gptoss_lab.course.lessons.lesson_12 import overwritten, pack, shares_memory
from gptoss_lab.weights import compare
from gptoss_lab.weights.checkpoint import TensorSpec
from gptoss_lab.weights.plan import Plan, Slot, plan


def ends(tensor):
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


def starts_inside(a, b):
    return ends(a)[0] <= b.data_ptr() < ends(a)[1]


def either_starts_inside(a, b):
    """Right but for a range of no bytes. Its `data_ptr` is 0, so the storage is asked for its place."""
    (a_start, a_size), (b_start, b_size) = (
        (t.untyped_storage().data_ptr() + t.storage_offset() * t.element_size(), t.nbytes) for t in (a, b)
    )
    return a_start <= b_start < a_start + a_size or b_start <= a_start < b_start + b_size


def in_one_storage_object(a, b):
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata and compare.shares_memory(a, b)


def touches(a, b):
    return max(ends(a)[0], ends(b)[0]) <= min(ends(a)[1], ends(b)[1])


def by_elements(a, b):
    stops = a.data_ptr() + a.numel(), b.data_ptr() + b.numel()
    return max(a.data_ptr(), b.data_ptr()) < min(stops)


def two_bytes_or_more(a, b):
    return max(ends(a)[0], ends(b)[0]) + 1 < min(ends(a)[1], ends(b)[1])


def as_an_int(a, b):
    return max(0, min(ends(a)[1], ends(b)[1]) - max(ends(a)[0], ends(b)[0]))


def by_writing(a, b):
    before = compare.raw_bytes(b)
    a.reshape(-1).view(torch.uint8).bitwise_not_()
    return compare.raw_bytes(b) != before


def prints_the_answer(a, b):
    print(compare.shares_memory(a, b))


SHARES_MEMORY = {
    "a constant": (lambda a, b: True, "It returned True every time"),
    "the same object": (lambda a, b: a is b, "case 'a view that starts in the middle'"),
    "equal values": (lambda a, b: a.shape == b.shape and torch.equal(a, b), "Compare addresses, not values"),
    "equal addresses": (lambda a, b: a.data_ptr() == b.data_ptr(), "The start addresses differ"),
    "one storage": (
        lambda a, b: a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr(),
        "touching is not overlapping",
    ),
    "touching counts": (touches, "case 'neighbours in one buffer'"),
    "off by one byte": (two_bytes_or_more, "case 'neighbours in one buffer'"),
    "elements for bytes": (by_elements, "case 'a view that starts in the middle'"),
    "b starts in a": (starts_inside, "with a and b exchanged is False, expected True"),
    "an empty range that starts inside": (either_starts_inside, "An empty range overlaps nothing"),
    "by NumPy": (lambda a, b: np.shares_memory(a.numpy(), b.numpy()), "NumPy knows no BF16: stay in PyTorch."),
    "in one storage object": (in_one_storage_object, "Two storage objects can lie over the same bytes"),
    "a number of bytes": (as_an_int, "is the int 32, expected the bool True"),
    "writes to find out": (by_writing, "the function changed its input: `a`"),
    "returns nothing": (prints_the_answer, "does every way through the function `return`?"),
}


def packs(fits=lambda start, size, capacity: start + size <= capacity, check=lambda sizes, capacity: None):
    """An answer that is right but for its rule of what fits, or for what it refuses."""

    def answer(sizes, capacity):
        check(sizes, capacity)
        slots, request, start = [], 0, 0
        for size in sizes:
            if not fits(start, size, capacity):
                request, start = request + 1, 0
            slots.append((request, start, start + size))
            start += size
        return slots

    return answer


def refuse(sizes, capacity):
    if max(sizes, default=0) > capacity:
        raise ValueError("too large")


def refuse_the_last(sizes, capacity):
    refuse(sizes[-1:], capacity)


def refuse_with_assert(sizes, capacity):
    assert max(sizes, default=0) <= capacity


def fills_gaps(sizes, capacity):
    refuse(sizes, capacity)
    slots, ends_of = [], []
    for size in sizes:
        request = next((i for i, stop in enumerate(ends_of) if stop + size <= capacity), len(ends_of))
        ends_of += [0] * (request == len(ends_of))
        slots.append((request, ends_of[request], ends_of[request] + size))
        ends_of[request] += size
    return slots


def two_requests(sizes, capacity):
    return [(min(request, 1), start, stop) for request, start, stop in packs(check=refuse)(sizes, capacity)]


def pops_the_sizes(sizes, capacity):
    right = packs(check=refuse)(list(sizes), capacity)
    sizes.clear()
    return right


def waits_for_room(sizes, capacity):
    slots, request, start = [], 0, 0
    for size in sizes:
        while start + size > capacity:
            request, start = request + 1, 0
        slots.append((request, start, start + size))
        start += size
    return slots


def yields(sizes, capacity):
    yield from packs(check=refuse)(sizes, capacity)


PACK = {
    "the answer of the first case": (lambda sizes, capacity: [(0, 0, 4), (0, 4, 6), (0, 6, 9)], "every time"),
    "one request for all": (packs(lambda *_: True, refuse), "case 'a second request starts at 0'"),
    "a request each": (packs(lambda start, *_: start == 0, refuse), "case 'all fit'"),
    "the last byte is not used": (packs(lambda s, n, c: s + n < c, refuse), "use > and not >="),
    "one byte too many": (packs(lambda s, n, c: s + n <= c + 1, refuse), "case 'a second request starts at 0'"),
    "fills gaps": (fills_gaps, "does not fill a gap that an earlier one left"),
    "an empty tensor starts anew": (
        packs(lambda s, n, c: s + max(n, 1) <= c, refuse),
        "case 'an empty tensor'",
    ),
    "two requests at most": (two_requests, "is 1, expected 2; the call was `pack(["),
    "refuses nothing": (packs(), "expected a ValueError"),
    "refuses the last only": (packs(check=refuse_the_last), "case 'a tensor larger than the buffer'"),
    "refuses with an assertion": (packs(check=refuse_with_assert), "raised AssertionError"),
    "refuses no tensors": (packs(check=lambda sizes, capacity: max(sizes)), "case 'no tensors'"),
    "counts requests from 1": (
        lambda sizes, capacity: [(r + 1, a, b) for r, a, b in packs(check=refuse)(sizes, capacity)],
        "the result[0][0] is 1, expected 0",
    ),
    "sizes for stops": (
        lambda sizes, capacity: [(r, a, b - a) for r, a, b in packs(check=refuse)(sizes, capacity)],
        "case 'all fit'",
    ),
    "lists for tuples": (
        lambda sizes, capacity: [list(slot) for slot in packs(check=refuse)(sizes, capacity)],
        "is a list of 3 items, expected a tuple of 3 items",
    ),
    "a generator": (yields, "expected a list of 3 items"),
    "empties the list": (pops_the_sizes, "the function changed its input: `sizes`"),
}


def overwrites_if(harms):
    """An answer that asks `harms(slot, other)` of each slot and every slot."""
    return lambda slots: [any(harms(slot, other) for other in slots) for slot in slots]


def overlap(slot, other):
    return max(slot[1], other[1]) < min(slot[2], other[2])


def among(slots, keep):
    """For each slot, whether one of the slots that `keep(slot, all requests)` leaves overlaps it."""
    requests = {}
    for slot in slots:
        requests.setdefault(slot[0], []).append(slot)
    return [any(overlap(slot, other) for other in keep(slot, requests)) for slot in slots]


def first_slots(slot, requests):
    return [request[0] for number, request in requests.items() if number > slot[0]]


def last_slots(slot, requests):
    return [request[-1] for number, request in requests.items() if number > slot[0]]


def last_request(slot, requests):
    return [other for other in requests[max(requests)] if other[0] > slot[0]]


def up_to_the_reach(slots):
    """True of slots that a stream packed, if none is empty: each request starts at 0."""
    reach = {request: max(stop for r, _, stop in slots if r == request) for request, _, _ in slots}
    return [any(number > r and start < stop for number, stop in reach.items()) for r, start, _ in slots]


def names_them(slots):
    return [i for i, lost in enumerate(among(slots, any_later)) if lost]


def any_later(slot, requests):
    return [other for number, request in requests.items() if number > slot[0] for other in request]


def sorts_the_slots(slots):
    right = among(slots, any_later)
    slots.sort(reverse=True)
    return right


def one_short(slots):
    return among(slots, any_later)[:-1]


OVERWRITTEN = {
    "a constant": (lambda slots: [False, False], "It returned [False, False] every time"),
    "all but the last request": (
        lambda slots: [slot[0] < slots[-1][0] for slot in slots],
        "case 'neighbours'",
    ),
    "any other request": (
        overwrites_if(lambda s, o: s[0] != o[0] and overlap(s, o)),
        "Only a later request overwrites, never an earlier one",
    ),
    "the next request only": (
        overwrites_if(lambda s, o: o[0] == s[0] + 1 and overlap(s, o)),
        "Look at every later request",
    ),
    "the last request only": (lambda slots: among(slots, last_request), "Look at every later request"),
    "the first slot of a request": (lambda slots: among(slots, first_slots), "A request writes all of its slots"),
    "the last slot of a request": (lambda slots: among(slots, last_slots), "A request writes all of its slots"),
    "as a whole only": (
        overwrites_if(lambda s, o: o[0] > s[0] and o[1] <= s[1] and s[2] <= o[2]),
        "A slot that is damaged in part is lost too",
    ),
    "touching counts": (
        overwrites_if(lambda s, o: o[0] > s[0] and max(s[1], o[1]) <= min(s[2], o[2])),
        "[0, 4) and [4, 8) do not overlap",
    ),
    "forgets the empty": (up_to_the_reach, "A tensor without bytes cannot lose one"),
    "the same place only": (overwrites_if(lambda s, o: o[0] > s[0] and o[1:] == s[1:]), "case 'all of a slot'"),
    "places for booleans": (names_them, "has 0 items, expected 2"),
    "one short": (one_short, "has 1 items, expected 2"),
    "sorts its input": (sorts_the_slots, "the function changed its input: `slots`"),
    "fails on nothing": (
        lambda slots: among(slots, any_later) if slots[0] else [],
        "case 'nothing at all': `overwritten` raised IndexError",
    ),
}
WRONG = {shares_memory: SHARES_MEMORY, pack: PACK, overwritten: OVERWRITTEN}


def test_an_answer_that_never_returns(monkeypatch):
    monkeypatch.setattr(pack, "seconds", 0.5)
    verdict = pack.verdict(waits_for_room)
    assert not verdict.passed
    assert "case 'a tensor larger than the buffer': `pack` did not return within 0.5 s" in str(verdict)


def planned_slots(sizes, capacity):
    """The package's planner in the form of exercise 12.2."""
    if not sizes:
        return []
    specs = [TensorSpec(f"t{i:03}", "U8", (size,)) for i, size in enumerate(sizes)]
    return [(slot.request, slot.start, slot.stop) for slot in plan(specs, capacity).slots]


def planned_losses(slots):
    """The package's planner in the form of exercise 12.3."""
    named = tuple(Slot(f"t{i:03}", *slot) for i, slot in enumerate(slots))
    lost = Plan(memory_limit=16, buffer_bytes=16, slots=named).overwritten
    return [slot.name in lost for slot in named]


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (shares_memory, compare.shares_memory),
        (pack, planned_slots),
        (overwritten, planned_losses),
        (pack, packs(check=refuse)),
        (overwritten, lambda slots: among(slots, any_later)),
    ],
    ids=["shares_memory of the package", "slots of plan", "overwritten of plan", "packs", "among"],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)
