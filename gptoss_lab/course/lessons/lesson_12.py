"""The checkers and drawings of `12__borrowed_views`."""

from __future__ import annotations

import random
from collections.abc import Mapping

import matplotlib.pyplot as plt
import torch

from gptoss_lab.course import figures
from gptoss_lab.course.check import Checker, Mismatch, expect_equal
from gptoss_lab.course.describe import show
from gptoss_lab.weights.checkpoint import TensorSpec
from gptoss_lab.weights.plan import Plan, Slot, Source, plan

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


@pack.case("a tensor larger than the buffer", hint="Raise ValueError.")
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
        expect_equal(pack(sizes, capacity), _packed(sizes, capacity), f"pack(sizes, {capacity})")


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


def request_frames(source: Source, memory_limit: int) -> tuple[list[figures.Picture], list[str]]:
    """Draw the buffer after each request: what the request wrote, and what earlier ones left behind it."""
    whole = plan(source, memory_limit)
    frames, captions, remains = [], [], []
    for number, request in enumerate(whole.requests):
        reach = request[-1].stop
        remains = [(max(start, reach), stop) for start, stop in remains if stop > reach]
        frames.append(_draw_buffer(whole, number, request, remains))
        captions.append(
            f"Request {number + 1} of {len(whole.requests)}: {len(request)} tensors fill {reach:,} of "
            f"{whole.buffer_bytes:,} bytes"
        )
        remains = [(slot.start, slot.stop) for slot in request] + remains
    return frames, captions


def _draw_buffer(whole: Plan, number: int, request: list[Slot], remains: list[tuple[int, int]]) -> figures.Picture:
    kib = 1024
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 1.7))
        for slot in request:
            expert = ".experts." in slot.name
            ax.barh(
                0,
                slot.nbytes / kib,
                left=slot.start / kib,
                color=figures.colour("buffer" if expert else "view"),
                edgecolor="white",
                hatch=None if expert else "..",
            )
        for start, stop in remains:
            ax.barh(0, (stop - start) / kib, left=start / kib, color="#C8C8C8", edgecolor="white")
        largest = max(request, key=lambda slot: slot.nbytes)
        ax.set(xlim=(0, whole.buffer_bytes / kib), yticks=[], xlabel="place in the buffer, KiB")
        ax.spines["left"].set_visible(False)
        ax.set_title(f"request {number + 1}: blue is an expert tensor, dotted is not, grey is left from before")
        return figures.picture(
            fig,
            f"The staging buffer after request {number + 1}: {len(request)} tensors from byte 0 to {request[-1].stop:,}, "
            f"the largest {largest.name}; {sum(stop - start for start, stop in remains):,} bytes behind them are left "
            "from earlier requests.",
        )


def sweep(source: Source, points: int) -> list[tuple[float, float]]:
    """Plan the stream at `points` limits from the smallest to just above the total.

    Returns pairs: the limit as a share of the checkpoint, and the share of its tensors that is lost.
    """
    smallest = max(slot.nbytes for slot in plan(source, -1).slots)
    total = plan(source, -1).total_bytes
    limits = [smallest + round((1.05 * total - smallest) * i / (points - 1)) for i in range(points)]
    plans = [plan(source, limit) for limit in sorted({*limits, total - 1, total})]
    return [(each.memory_limit / total, len(each.overwritten) / len(each.slots)) for each in plans]


def draw_phases(models: Mapping[str, Source], marks: Mapping[str, tuple[str, int]], points: int = 120) -> None:
    """Plot the share of lost tensors against the limit as a share of the checkpoint, one line a model.

    `marks` are limits to point at: a label, with the model and the limit in bytes.
    """
    curves = {name: sweep(source, points) for name, source in models.items()}
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 4))
        for (name, curve), dashes in zip(curves.items(), ("-", "--", ":"), strict=False):
            ax.plot(*zip(*curve, strict=True), dashes, label=name, drawstyle="steps-post")
        for label, (name, limit) in marks.items():
            at = plan(models[name], limit)
            x, y = limit / at.total_bytes, len(at.overwritten) / len(at.slots)
            ax.plot(x, y, "o", color=figures.colour("limit"), markersize=9, zorder=3)
            ax.annotate(label, (x, y), (x + 0.02, y + 0.1), color=figures.colour("limit"))
        ax.axvline(1, color=figures.colour("muted"), linewidth=1)
        ax.text(1.005, 0.5, "holds everything", rotation=90, va="center", color=figures.colour("muted"))
        ax.set(
            xlabel="limit / bytes of the checkpoint",
            ylabel="tensors lost, share",
            ylim=(0, 1.02),
            xlim=(0, 1.06),
        )
        ax.set_title("What is lost if every view is kept to the end")
        ax.legend(loc="lower left")
        names = ", ".join(curves)
        figures.show(
            fig,
            f"Three step curves ({names}): the share of tensors lost against the limit divided by the size of the "
            f"checkpoint. All start above 0.9 at the left, wander down, and drop to 0 at 1. Marked: {', '.join(marks)}.",
        )
