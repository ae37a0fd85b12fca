"""The checkers of `18__same_fault_elsewhere`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from gptoss_lab.course.check import Checker, LiveTensors, Mismatch, expect_equal
from gptoss_lab.course.lessons.check_pairs_18 import load_pairs, load_scaled
from gptoss_lab.course.lessons.stand_ins_18 import Lender

__all__ = ["load_pairs", "load_scaled", "watch"]

watch = Checker("18.1", "watch", may_change=(2,), done="It reads no byte, and misses no view that is kept.")


def _bytes(**sizes: int) -> dict[str, torch.Tensor]:
    return {name: torch.full((size,), place, dtype=torch.uint8) for place, (name, size) in enumerate(sizes.items())}


def _expect_kept(watch: Callable, lender: Lender, load: Callable, expected: set[str]) -> None:
    kept: set[str] = set()
    load(watch(lender.weights(), lender.layout, kept))
    expect_equal(kept, expected, f"what was kept ({lender})")


def _copy_each(weights: Iterable) -> None:
    for _, tensor in weights:
        tensor.clone()


@watch.case("a loader that copies each at once", hint="The loader's loop variable still names the tensor before.")
def _(watch):
    lender = Lender(_bytes(a=4, b=4, c=8, d=3, e=5, f=8), 8)
    _expect_kept(watch, lender, _copy_each, set())


@watch.case("a list of everything", hint="Look at every step, and once more when the stream has ended.")
def _(watch):
    lender = Lender(_bytes(a=4, b=4, c=8, d=3, e=5, f=8), 8)
    _expect_kept(watch, lender, list, set(lender.layout.overwritten))


@watch.case("a view and an array of it", hint="Follow the storage: whatever is derived from a tensor holds it.")
def _(watch):
    lender = Lender(_bytes(a=4, b=4, c=8, d=8), 8)

    def load(weights):
        kept = []
        for name, tensor in weights:
            kept.append(tensor[:1] if name == "a" else tensor.numpy() if name == "b" else None)

    _expect_kept(watch, lender, load, {"a", "b"})


@watch.case("kept within its request", hint="A view is good until a later request lies in its place.")
def _(watch):
    lender = Lender(_bytes(a=4, b=2, c=2, d=8, e=8), 8)

    def load(weights):
        kept = []
        for name, tensor in weights:
            kept.append(tensor)
            if name in ("c", "d", "e"):
                kept.clear()

    _expect_kept(watch, lender, load, set())


@watch.case("kept, and spared", hint="`layout.overwriters(name)` are the later slots that overlap this one.")
def _(watch):
    lender = Lender(_bytes(a=4, b=4, c=6, d=3), 8)
    _expect_kept(watch, lender, list, {"a", "b", "c"})
    lender = Lender(_bytes(a=2, b=6, c=2), 8)
    _expect_kept(watch, lender, list, {"a"})


@watch.case("spared by the next request, hit by a later one", hint="Look at every later request up to now.")
def _(watch):
    lender = Lender(_bytes(a=2, b=6, c=2, d=7), 8)
    _expect_kept(watch, lender, list, {"a", "b", "c"})
    lender = Lender(_bytes(a=2, b=6, c=7, d=2), 8)
    _expect_kept(watch, lender, list, {"a", "b", "c"})


@watch.case("let go before its new bytes are yielded", hint="A request is written before its tensors are yielded.")
def _(watch):
    lender = Lender(_bytes(a=2, b=4, c=2, d=1, e=1, f=6), 8)  # f will lie over b

    def load(weights):
        waiting = []
        for name, tensor in weights:
            if name == "b":
                waiting.append(tensor)
            if name == "e":
                waiting.clear()

    _expect_kept(watch, lender, load, {"b"})


@watch.case("let go before the end", hint="Look at every step, not only when the stream has ended.")
def _(watch):
    lender = Lender(_bytes(a=8, b=8, c=8, d=8, e=8), 8)

    def load(weights):
        pair = []
        for name, tensor in weights:
            if name == "a":
                pair.append(tensor)
            if name == "d":
                pair.clear()

    _expect_kept(watch, lender, load, {"a"})


@watch.case("the last but one", hint="Look once more when the stream has ended.")
def _(watch):
    lender = Lender(_bytes(a=8, b=8), 8)
    _expect_kept(watch, lender, list, {"a"})


@watch.case("nothing to watch")
def _(watch):
    _expect_kept(watch, Lender({}, 8), list, set())


@watch.case("the stream is unchanged", hint="Yield each pair as it came, before you ask for the next.")
def _(watch):
    lender = Lender(_bytes(a=4, b=4, c=8), 8)
    seen = []
    for name, tensor in watch(lender.weights(), lender.layout, set()):
        seen.append((name, lender.produced, int(tensor[0])))
    expect_equal(seen, [("a", 1, 0), ("b", 2, 1), ("c", 3, 2)], "name, tensors produced, first byte")


@watch.cost("it keeps no tensor itself", hint="`StorageWeakRef(tensor.untyped_storage())` follows without holding.")
def _(watch):
    lender, live = Lender(_bytes(a=4, b=4, c=8, d=8, e=8), 8), LiveTensors()
    _copy_each(watch(live.watch(lender.weights()), lender.layout, set()))
    if live.peak > 3:
        raise Mismatch(f"{live.peak} tensors were alive at once, expected 3 at most")
