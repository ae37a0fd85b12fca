"""The checkers of `22__when_bytes_change`."""

from __future__ import annotations

import torch

from gptoss_lab.course.check import Checker, expect_equal, expect_raises
from gptoss_lab.course.lessons.stand_ins_18 import Lender
from gptoss_lab.course.lessons.watching_18 import watch
from gptoss_lab.weights.compare import raw_bytes

classify = Checker("22.1", "classify", done="It looks at bytes, and guesses nothing.")


def _u8(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


@classify.case("still the old bytes")
def _(classify):
    expect_equal(classify(_u8(1, 2, 3, 4), _u8(1, 2, 3, 4), _u8(5, 6, 7, 8)), "old")


@classify.case("all new")
def _(classify):
    expect_equal(classify(_u8(5, 6, 7, 8), _u8(1, 2, 3, 4), _u8(5, 6, 7, 8)), "new")


@classify.case("half and half", hint="Torn: each byte is the old one or the new one, in its own place.")
def _(classify):
    expect_equal(classify(_u8(5, 6, 3, 4), _u8(1, 2, 3, 4), _u8(5, 6, 7, 8)), "torn")


@classify.case("one byte of many", hint="Look at every byte. A sample misses the seam.")
def _(classify):
    old, new = torch.zeros(4096, dtype=torch.uint8), torch.ones(4096, dtype=torch.uint8)
    for place in (0, 2049, 4095):
        view = old.clone()
        view[place] = 1
        expect_equal(classify(view, old, new), "torn")


@classify.case(
    "in BF16, with NaN and -0.0",
    hint="NaN is not equal to itself, and -0.0 equals 0.0: compare bytes.",
    hint_for=ValueError,
)
def _(classify):
    old = torch.tensor([[float("nan"), 1.0], [0.0, 2.0]], dtype=torch.bfloat16)
    new = torch.tensor([[float("nan"), 1.0], [-0.0, 2.0]], dtype=torch.bfloat16)
    expect_equal(classify(old.clone(), old, new), "old")
    expect_equal(classify(new.clone(), old, new), "new")


@classify.case(
    "new bytes of another dtype",
    hint="View all three as `torch.uint8`, in one dimension.",
    hint_for=(RuntimeError, ValueError),
)
def _(classify):
    old = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    new = torch.tensor([1.5, -8.0])
    view = new.view(torch.bfloat16).reshape(2, 2).clone()
    expect_equal(classify(view, old, new), "new")
    view[0] = old[0]
    expect_equal(classify(view, old, new), "torn")


@classify.case(
    "a seam inside a number",
    hint="A torn number is neither the old nor the new one. Its bytes are.",
    hint_for=ValueError,
)
def _(classify):
    old, new = torch.tensor([1.0]), torch.tensor([-2.5e10])
    mixed = torch.cat([new.view(torch.uint8)[:2], old.view(torch.uint8)[2:]]).view(torch.float32)
    expect_equal(classify(mixed, old, new), "torn")


@classify.case("old and new are the same", hint="Nothing was lost that anybody could tell: that is `old`.")
def _(classify):
    expect_equal(classify(_u8(7, 7), _u8(7, 7), _u8(7, 7)), "old")


@classify.case("a byte of neither", hint="Raise ValueError: a third writer is another fault.", hint_for=Exception)
def _(classify):
    expect_raises(classify, ValueError, _u8(1, 2, 9, 4), _u8(1, 2, 3, 4), _u8(5, 6, 7, 8))


settled = Checker("22.2", "settled", done="A late read now finds the new bytes, each time.")


def _bytes(*sizes: int) -> dict[str, torch.Tensor]:
    return {f"t{place}": torch.full((size,), place + 1, dtype=torch.uint8) for place, size in enumerate(sizes)}


def _expect_seen(settled, lender: Lender, expected: list[tuple[str, int]]) -> None:
    """Compare each tensor's name, and how many had been produced when it came."""
    seen = [(name, lender.produced) for name, _ in settled(lender.weights(), lender.layout)]
    expect_equal(seen, expected, f"name, tensors produced ({lender})")


@settled.case("a late read finds the new bytes", hint="Take all tensors of a request before you yield its first.")
def _(settled):
    lender = Lender(_bytes(2, 2, 4, 2, 2, 4), 8, lazily=True)
    old = {}
    for name, tensor in settled(lender.weights(), lender.layout):
        if name in ("t0", "t1", "t2"):
            old[name] = tensor
        if name == "t3":
            late = [raw_bytes(tensor)[0] for tensor in old.values()]
            expect_equal(late, [4, 5, 6], f"first bytes of the old views when t3 comes ({lender})")


@settled.case("each is right when it comes", hint="Within its request every view is good, and not after it.")
def _(settled):
    lender = Lender(_bytes(2, 2, 4, 2, 2, 4, 8), 8, lazily=True)
    first = [int(tensor[0]) for _, tensor in settled(lender.weights(), lender.layout)]
    expect_equal(first, [1, 2, 3, 4, 5, 6, 7], f"first byte of each tensor ({lender})")


@settled.case("no request ahead", hint="`islice(weights, n)` takes n pairs and leaves the rest.")
def _(settled):
    lender = Lender(_bytes(2, 2, 4, 8, 3, 3), 8, lazily=True)
    expected = [("t0", 3), ("t1", 3), ("t2", 3), ("t3", 4), ("t4", 6), ("t5", 6)]
    _expect_seen(settled, lender, expected)


@settled.case("one tensor a request")
def _(settled):
    lender = Lender(_bytes(8, 8, 8), 8, lazily=True)
    _expect_seen(settled, lender, [("t0", 1), ("t1", 2), ("t2", 3)])


@settled.case("one request for all")
def _(settled):
    lender = Lender(_bytes(1, 2, 3), 8, lazily=True)
    _expect_seen(settled, lender, [("t0", 3), ("t1", 3), ("t2", 3)])


@settled.case("no tensors")
def _(settled):
    _expect_seen(settled, Lender({}, 8, lazily=True), [])


@settled.case("the stream is taken to its end", hint="Ask once more after the last request: that ends the stream.")
def _(settled):
    lender = Lender(_bytes(8, 8), 8, lazily=True)
    for _ in settled(lender.weights(), lender.layout):
        pass
    expect_equal(lender.ended, True, "whether the stream ended")


@settled.cost("it keeps nothing of a request that is over", hint="Let go of each pair as you yield it.")
def _(settled):
    lender, kept = Lender(_bytes(2, 2, 4, 8, 3, 3, 8), 8, lazily=True), set()
    for _ in watch(settled(lender.weights(), lender.layout), lender.layout, kept):
        pass
    expect_equal(kept, set(), "what a detector finds kept when the loader keeps nothing")
