"""The checker of exercise 20.3: whose memory is it?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gptoss_lab.course.check import Checker, Mismatch, count_copies, expect_equal
from gptoss_lab.course.describe import describe, kind_of
from gptoss_lab.course.lessons.owning_20 import IN_ITS_MEMORY, WAYS, mark_storage, memory_of
from gptoss_lab.weights.streaming import STREAMED

own_by_memory = Checker("20.3", "own_by_memory", done="It goes by the memory, whatever became of the mark.")

SIZE = 96


class Buffer:
    """Memory of the stream: two stretches are lent, with a gap between them, and nothing before or behind."""

    def __init__(self) -> None:
        self.bytes = np.arange(SIZE, dtype=np.uint8)
        self.start = self.bytes.ctypes.data
        self.lent = [(self.start + 16, self.start + 48), (self.start + 64, self.start + 80)]

    def tensor(self, start: int, stop: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """A tensor over some of it, with a storage of its own, as the streamer makes them."""
        return torch.from_numpy(self.bytes[start:stop]).view(dtype)


def _expect_owned(own: Callable, derived: torch.Tensor, lent: list, what: str) -> None:
    """It must be equal, in other memory, on the host, and without a history."""
    before = derived.detach().clone()
    result = own(derived, lent)
    _expect_tensor(result, what)
    start, stop = memory_of(result)
    if any(max(start, first) < min(stop, last) for first, last in lent):
        raise Mismatch(f"{what}: what came back still lies in the stream's memory")
    expect_equal(result, before, what)
    if result.requires_grad:
        raise Mismatch(f"{what}: what came back asks for a gradient, expected a plain tensor")


def _expect_tensor(result: object, what: str) -> None:
    if not isinstance(result, torch.Tensor):
        raise Mismatch(f"{what}: returned {describe(result)}, expected a tensor", kinds=(kind_of(result), "tensor"))


def _expect_handed_on(own: Callable, tensor: torch.Tensor, lent: list, what: str) -> None:
    result = own(tensor, lent)
    _expect_tensor(result, what)
    if result is not tensor:
        raise Mismatch(f"{what} came back as another object, expected the same")


@own_by_memory.case(
    "as it was yielded",
    hint="`memory_of(tensor)` gives its addresses; copy if a range meets them. "
    '`.to("cpu")` of a CPU tensor is the tensor itself: `copy=True` makes a copy.',
)
def _(own_by_memory):
    buffer = Buffer()
    for start, stop in ((16, 48), (16, 24), (40, 48), (64, 80)):
        _expect_owned(own_by_memory, buffer.tensor(start, stop), buffer.lent, "a lent tensor")


@own_by_memory.case("whatever was made of it", hint="A mark can be lost, on the storage too. Memory cannot.")
def _(own_by_memory):
    for way, derive in list(WAYS.items())[:IN_ITS_MEMORY]:
        buffer = Buffer()
        tensor = buffer.tensor(16, 48, torch.bfloat16).view(4, 4)
        setattr(tensor, STREAMED, True)
        ((_, tensor),) = mark_storage([("tensor", tensor)])
        _expect_owned(own_by_memory, derive(tensor), buffer.lent, way)


@own_by_memory.case("a part, and strides", hint="Ask for the storage's addresses, not for `data_ptr()` alone.")
def _(own_by_memory):
    buffer = Buffer()
    whole = buffer.tensor(16, 48).view(4, 8)
    for part, what in ((whole[2:], "the last rows"), (whole.t(), "transposed"), (whole[:, 3], "a column")):
        _expect_owned(own_by_memory, part, buffer.lent, what)


@own_by_memory.case("memory that begins before", hint="Two ranges meet if the later start is before both ends.")
def _(own_by_memory):
    buffer = Buffer()
    for start, stop in ((8, 24), (40, 60), (8, 56), (50, 70), (0, SIZE)):
        _expect_owned(own_by_memory, buffer.tensor(start, stop), buffer.lent, f"bytes {start} to {stop} of the buffer")


@own_by_memory.case(
    "a view that skips bytes", hint="`nbytes` is what it holds, not how far it reaches: ask the storage."
)
def _(own_by_memory):
    buffer = Buffer()
    _expect_owned(own_by_memory, buffer.tensor(0, SIZE)[::8], buffer.lent, "every eighth byte of the buffer")


@own_by_memory.case("somebody else's tensor", hint="No byte of it is lent: return the object itself.")
def _(own_by_memory):
    buffer, mine = Buffer(), torch.arange(8)
    for tensor, what in ((mine, "a tensor"), (mine[2:], "a view"), (buffer.tensor(16, 48).clone(), "a clone")):
        _expect_handed_on(own_by_memory, tensor, buffer.lent, what)
    _expect_handed_on(own_by_memory, buffer.tensor(16, 48), [], "a tensor when nothing is lent")


@own_by_memory.case("a mark that means nothing", hint="Ask the memory, not the mark: a copy can carry it too.")
def _(own_by_memory):
    buffer, mine = Buffer(), torch.arange(8)
    setattr(mine, STREAMED, True)
    ((_, mine),) = mark_storage([("mine", mine)])
    _expect_handed_on(own_by_memory, mine, buffer.lent, "a marked tensor in memory of its own")


@own_by_memory.case("neighbours", hint="The end of a range is the first byte that is not in it.")
def _(own_by_memory):
    buffer = Buffer()
    for start, stop in ((0, 16), (48, 64), (80, SIZE)):
        _expect_handed_on(own_by_memory, buffer.tensor(start, stop), buffer.lent, f"bytes {start} to {stop}, not lent")


@own_by_memory.case("no elements", hint="A tensor without bytes lies nowhere.")
def _(own_by_memory):
    buffer = Buffer()
    _expect_handed_on(own_by_memory, torch.zeros(0, 3), buffer.lent, "a tensor without elements")


@own_by_memory.case("a gradient", hint="Detach: a weight that waits has no history.")
def _(own_by_memory):
    buffer = Buffer()
    tensor = buffer.tensor(16, 48, torch.bfloat16).requires_grad_()
    _expect_owned(own_by_memory, tensor, buffer.lent, "a tensor that asks for a gradient")


@own_by_memory.cost("one copy, of the tensor alone", hint='`detach().to("cpu", copy=True)` copies it once.')
def _(own_by_memory):
    memory = np.zeros(4096, np.uint8)
    part = torch.from_numpy(memory)[:512]
    lent = [(memory.ctypes.data, memory.ctypes.data + 4096)]
    with count_copies() as copies:
        own_by_memory(part, lent)
    if copies.allocated > part.nbytes:
        raise Mismatch(f"{copies.allocated} bytes were allocated for a tensor of {part.nbytes}")
