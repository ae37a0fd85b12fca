"""The checkers of `42__twenty_launches`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gptoss_lab.course.check import Checker, Mismatch, expect_equal
from gptoss_lab.moe.generations import interpreting
from gptoss_lab.moe.launches import Launch

METADATA = (
    "aten.zeros",
    "_sum_bitmatrix_rows",
    "_bitmatrix_metadata_compute_stage1",
    "_bitmatrix_metadata_compute_stage2",
)
REPACK = ("aten.zeros", "pack_bitmatrix", "aten.eq", "aten.scalar_tensor", "aten.where")
TAIL = ("_ragged_tensor_metadata_memset", "_ragged_tensor_metadata_compute", "aten.index", "aten.index")
TWENTY = ["_topk_forward", *METADATA, "aten._to_copy", "aten._to_copy", *REPACK, *METADATA, *TAIL]


def _numbers(*shape: int) -> torch.Tensor:
    """Small floats on the device whose launches are counted."""
    device = "cuda" if torch.cuda.is_available() and not interpreting() else "cpu"
    count = torch.Size(shape).numel()
    return torch.arange(1.0, 1.0 + count, device=device).reshape(shape)


def _expect_table(learner: Callable, cut: dict[str, Callable], value: Any, expected: dict[str, list[str]]) -> None:
    table = learner(cut, value)
    expect_equal(table, expected)
    expect_equal(list(table), list(expected), "the order of the stages")


by_origin = Checker("42.1", "by_origin", done="Every launch has an origin.")


@by_origin.case("one stage", hint="`launches(lambda: stage(value))` lists what one stage launches.")
def _(by_origin):
    _expect_table(by_origin, {"double": lambda x: x * 2}, _numbers(4), {"double": ["aten.mul"]})


@by_origin.case(
    "a stage takes what the last one returned",
    hint="Keep the result of each stage for the next one.",
    hint_for=(IndexError, TypeError),
)
def _(by_origin):
    cut = {
        "cast": lambda x: {"wide": x.to(torch.float64), "narrow": x},
        "add": lambda both: both["wide"] + both["narrow"].to(torch.float64),
    }
    _expect_table(by_origin, cut, _numbers(4), {"cast": ["aten._to_copy"], "add": ["aten._to_copy", "aten.add"]})


@by_origin.case("a stage without a launch", hint="A view launches nothing. Its stage has an empty list.")
def _(by_origin):
    cut = {"turn": lambda x: x.t(), "double": lambda x: x * 2, "row": lambda x: x[0]}
    _expect_table(by_origin, cut, _numbers(2, 3), {"turn": [], "double": ["aten.mul"], "row": []})


@by_origin.case("the same call in two stages", hint="A list for each stage: a set or a count loses the order.")
def _(by_origin):
    cut = {"up": lambda x: x + 1, "down": lambda x: (x * 2 + 3) * 4}
    expected = {"up": ["aten.add"], "down": ["aten.mul", "aten.add", "aten.mul"]}
    _expect_table(by_origin, cut, _numbers(4), expected)


@by_origin.case("stages in their own order")
def _(by_origin):
    cut = {"z": lambda x: x + 1, "a": lambda x: x == 2, "m": lambda x: x.to(torch.int64)}
    _expect_table(by_origin, cut, _numbers(3), {"z": ["aten.add"], "a": ["aten.eq"], "m": ["aten._to_copy"]})


@by_origin.case("no stages")
def _(by_origin):
    _expect_table(by_origin, {}, _numbers(2), {})


find_repeat = Checker(
    "42.2", "find_repeat", may_be_none=True, done="On the real list it finds the second `SparseMatrix`."
)


@find_repeat.case("a run of two")
def _(find_repeat):
    expect_equal(find_repeat(["cast", "zeros", "sum", "pack", "zeros", "sum", "index"]), (1, 4, 2))


@find_repeat.case("nothing twice", hint="Return None where no name occurs twice.", hint_for=(ValueError, IndexError))
def _(find_repeat):
    expect_equal(find_repeat(["cast", "zeros", "sum"]), None)


@find_repeat.case("an empty list")
def _(find_repeat):
    expect_equal(find_repeat([]), None)


@find_repeat.case("one name, over and over", hint="The second run begins at or after the end of the first.")
def _(find_repeat):
    expect_equal(find_repeat(["add"] * 5), (0, 2, 2))


@find_repeat.case("runs that would overlap", hint="In a b a b a the run a b a occurs twice only if they share an a.")
def _(find_repeat):
    expect_equal(find_repeat(list("ababa")), (0, 2, 2))


@find_repeat.case("at both ends", hint="The second run may reach to the end of the list.")
def _(find_repeat):
    expect_equal(find_repeat(["copy", "add", "pack", "copy", "add"]), (0, 3, 2))


@find_repeat.case("two runs of one length", hint="Of equals take the one that begins first.")
def _(find_repeat):
    expect_equal(find_repeat(list("abxabycdzcd")), (0, 3, 2))


@find_repeat.case("the longest comes last", hint="Do not stop at the first repeat: a longer one may follow.")
def _(find_repeat):
    expect_equal(find_repeat(list("abxabycdezcde")), (6, 10, 3))


@find_repeat.case("three times", hint="Of equals take the second run that begins first.")
def _(find_repeat):
    expect_equal(find_repeat(list("abcxabcyabc")), (0, 4, 3))


@find_repeat.case("the twenty launches")
def _(find_repeat):
    expect_equal(find_repeat(list(TWENTY)), (1, 12, 4))


busy_share = Checker("42.3", "busy_share", done="What is left is the device waiting for the host.")


def _launch(launched: float, started: float, lasted: float) -> Launch:
    return Launch("aten.add", "add_kernel", launched, started, lasted)


def _expect_share(learner: Callable, timeline: list[Launch], expected: float) -> None:
    share = learner(timeline)
    if isinstance(share, torch.Tensor) or not isinstance(share, (int, float)):
        expect_equal(share, expected, "the share")
    if abs(share - expected) > 1e-9:
        given = [(launch.launched_us, launch.started_us, launch.lasted_us) for launch in timeline]
        raise Mismatch(f"the share is {share:.4g}, expected {expected:.4g}, for (launched, started, lasted) {given}")


@busy_share.case("one kernel", hint="The clock starts when the host asks for the first kernel.")
def _(busy_share):
    _expect_share(busy_share, [_launch(0, 6, 2)], 0.25)


@busy_share.case("gaps between kernels")
def _(busy_share):
    _expect_share(busy_share, [_launch(0, 5, 2), _launch(20, 25, 3), _launch(40, 45, 5)], 0.2)


@busy_share.case("one behind the other", hint="Kernels that follow without a gap: the device is busy throughout.")
def _(busy_share):
    _expect_share(busy_share, [_launch(0, 0, 4), _launch(1, 4, 4), _launch(2, 8, 4)], 1.0)


@busy_share.case("two at the same time", hint="Two streams may run at once. Count such a moment once.")
def _(busy_share):
    _expect_share(busy_share, [_launch(0, 2, 4), _launch(1, 4, 4), _launch(10, 14, 2)], 0.5)


@busy_share.case("one inside another", hint="A short kernel may begin and end while a long one runs.")
def _(busy_share):
    _expect_share(busy_share, [_launch(0, 0, 10), _launch(1, 2, 3), _launch(2, 4, 2), _launch(15, 16, 4)], 0.7)


@busy_share.case("not in the order of starting", hint="Sort by start. The last of the list need not end last.")
def _(busy_share):
    _expect_share(busy_share, [_launch(0, 8, 2), _launch(1, 2, 3)], 0.5)


@busy_share.case("a clock that does not start at 0")
def _(busy_share):
    _expect_share(busy_share, [_launch(100, 110, 5), _launch(105, 115, 5)], 0.5)


@busy_share.case("no kernels", hint="No kernels: the share is 0.", hint_for=(ValueError, IndexError, ZeroDivisionError))
def _(busy_share):
    _expect_share(busy_share, [], 0.0)
