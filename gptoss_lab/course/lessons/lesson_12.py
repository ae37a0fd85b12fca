"""The checkers of `12__borrowed_views`."""

from __future__ import annotations

import random

import torch

from gptoss_lab.course.check import Checker, Mismatch, expect_equal
from gptoss_lab.course.describe import show
from gptoss_lab.weights.checkpoint import TensorSpec
from gptoss_lab.weights.plan import plan

shares_memory = Checker("12.1", "shares_memory", done="It looks at addresses, so no call's name fools it.")


def _expect_shared(shares_memory, a: torch.Tensor, b: torch.Tensor, expected: bool) -> None:
    expect_equal(shares_memory(a, b), expected)
    expect_equal(shares_memory(b, a), expected, "the result with a and b exchanged")


@shares_memory.case("a tensor and itself")
def _(shares_memory):
    a = torch.arange(8.0)
    _expect_shared(shares_memory, a, a, True)


@shares_memory.case("a copy with equal values", hint="Compare addresses, not values.")
def _(shares_memory):
    a = torch.arange(8.0)
    _expect_shared(shares_memory, a, a.clone(), False)


@shares_memory.case("a view that starts in the middle", hint="The start addresses differ. Do the ranges overlap?")
def _(shares_memory):
    a = torch.arange(8.0)
    _expect_shared(shares_memory, a, a[3:5], True)


@shares_memory.case("another dtype and shape")
def _(shares_memory):
    a = torch.arange(8.0)
    _expect_shared(shares_memory, a, a.view(torch.uint8).reshape(4, 8), True)


@shares_memory.case("in BF16", hint="NumPy knows no BF16: stay in PyTorch.", hint_for=TypeError)
def _(shares_memory):
    a = torch.arange(8.0).bfloat16()
    _expect_shared(shares_memory, a, a[3:5], True)
    _expect_shared(shares_memory, a, a.clone(), False)


@shares_memory.case("neighbours in one buffer", hint="A range ends before its stop: touching is not overlapping.")
def _(shares_memory):
    buffer = torch.zeros(16, dtype=torch.uint8)
    _expect_shared(shares_memory, buffer[:8], buffer[8:], False)
    _expect_shared(shares_memory, buffer[:9], buffer[8:], True)


@shares_memory.case("two storages over one buffer", hint="Two storage objects can lie over the same bytes.")
def _(shares_memory):
    buffer = bytearray(64)
    a = torch.frombuffer(buffer, dtype=torch.float32, count=8)
    b = torch.frombuffer(buffer, dtype=torch.uint8, count=16, offset=16)
    _expect_shared(shares_memory, a, b, True)


@shares_memory.case("no elements, no bytes", hint="An empty range overlaps nothing.")
def _(shares_memory):
    a = torch.arange(8.0)
    _expect_shared(shares_memory, a, a[2:2], False)


pack = Checker("12.2", "pack", done="This is how the streamer fills its buffer, to the byte.")


@pack.case("all fit")
def _(pack):
    expect_equal(pack([4, 2, 3], 10), [(0, 0, 4), (0, 4, 6), (0, 6, 9)])


@pack.case("the last byte fits", hint="A tensor that ends at the capacity fits: use > and not >=.")
def _(pack):
    expect_equal(pack([4, 6], 10), [(0, 0, 4), (0, 4, 10)])


@pack.case("a second request starts at 0")
def _(pack):
    expect_equal(pack([9, 2, 3], 10), [(0, 0, 9), (1, 0, 2), (1, 2, 5)])


@pack.case("no way back", hint="The order stays. A small tensor does not fill a gap that an earlier one left.")
def _(pack):
    expect_equal(pack([6, 6, 3], 10), [(0, 0, 6), (1, 0, 6), (1, 6, 9)])


@pack.case("an empty tensor")
def _(pack):
    expect_equal(pack([10, 0, 1], 10), [(0, 0, 10), (0, 10, 10), (1, 0, 1)])


@pack.case("no tensors")
def _(pack):
    expect_equal(pack([], 10), [])


@pack.case("a tensor larger than the buffer", hint="Raise ValueError.", hint_for=Exception)
def _(pack):
    try:
        answer = pack([3, 11, 2], 10)
    except ValueError:
        return
    raise Mismatch(f"a tensor of 11 bytes in a buffer of 10 gave {show(answer)}, expected a ValueError")


@pack.case("forty tensors of any size")
def _(pack):
    sizes = random.Random(12).choices(range(1, 50), k=40)
    for capacity in (49, 64, 100, 333, sum(sizes)):
        for count in range(1, 41):  # so that the first ones which are wrong are few
            expect_equal(pack(sizes[:count], capacity), _packed(sizes[:count], capacity))


def _packed(sizes: list[int], capacity: int) -> list[tuple[int, int, int]]:
    """The package's own planner, in the lesson's form."""
    specs = [TensorSpec(f"t{i:03}", "U8", (size,)) for i, size in enumerate(sizes)]
    return [(slot.request, slot.start, slot.stop) for slot in plan(specs, capacity).slots]


overwritten = Checker("12.3", "overwritten", done="With `pack` it predicts every lost view.")


@overwritten.case("one request")
def _(overwritten):
    expect_equal(overwritten([(0, 0, 4), (0, 4, 10)]), [False, False])


@overwritten.case("all of a slot", hint="Only a later request overwrites, never an earlier one.")
def _(overwritten):
    expect_equal(overwritten([(0, 0, 4), (1, 0, 8)]), [True, False])


@overwritten.case("one byte of a slot", hint="A slot that is damaged in part is lost too.")
def _(overwritten):
    expect_equal(overwritten([(0, 0, 8), (0, 8, 10), (1, 0, 9)]), [True, True, False])


@overwritten.case("by any slot of the request", hint="A request writes all of its slots, not its first or last alone.")
def _(overwritten):
    expect_equal(overwritten([(0, 0, 3), (0, 3, 9), (1, 0, 3), (1, 3, 4)]), [True, True, False, False])


@overwritten.case("neighbours", hint="[0, 4) and [4, 8) do not overlap.")
def _(overwritten):
    expect_equal(overwritten([(0, 4, 8), (1, 0, 4)]), [False, False])


@overwritten.case("by any later request", hint="Look at every later request, not only the next or the last.")
def _(overwritten):
    expect_equal(overwritten([(0, 0, 3), (0, 3, 9), (1, 0, 2), (2, 0, 7)]), [True, True, True, False])
    expect_equal(overwritten([(0, 0, 3), (0, 3, 9), (1, 0, 7), (2, 0, 2)]), [True, True, True, False])


@overwritten.case("an empty slot", hint="A tensor without bytes cannot lose one, and overwrites none.")
def _(overwritten):
    expect_equal(overwritten([(0, 0, 4), (0, 4, 4), (1, 0, 0), (2, 0, 8)]), [True, False, False, False])


@overwritten.case("nothing at all")
def _(overwritten):
    expect_equal(overwritten([]), [])
