"""The checkers of the exercises of `48__one_launch` that are written in Triton."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gptoss_lab.course.check import Mismatch, expect_equal
from gptoss_lab.course.lessons.kernels_48 import KernelChecker, device, run_place, run_rank, run_route
from gptoss_lab.course.lessons.one_launch_48 import route_with
from gptoss_lab.course.lessons.stand_ins_44 import reused
from gptoss_lab.moe.equivalence import assert_equivalent
from gptoss_lab.moe.fused_routing import route
from gptoss_lab.moe.launches import launches

BF16 = torch.bfloat16
LIMIT_S = 30.0 if device() == "cpu" else 120.0  # of a case; a compiler takes longer than the interpreter


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def random_experts(slots: int, experts: int = 32) -> torch.Tensor:
    return torch.randint(0, experts, (slots,), generator=torch.Generator().manual_seed(slots), dtype=torch.int32)


def expected_rank(experts: torch.Tensor) -> torch.Tensor:
    """The inverse of a stable sort."""
    return torch.argsort(torch.argsort(experts, stable=True)).int()


rank_kernel = KernelChecker(
    "48.2", "rank_kernel", done="One launch, and each int of `Rows` written once.", seconds=LIMIT_S
)


@rank_kernel.case("four slots, N = 4", hint="Row of a slot: how many come before it, by expert and then by slot.")
def _(rank_kernel):
    expect_equal(rank_kernel(run_rank, int32(6, 0, 9, 5)), int32(2, 0, 3, 1), "Rows")


@rank_kernel.case("one expert for all", hint="Of two slots with one expert, the lower slot comes first.")
def _(rank_kernel):
    expect_equal(rank_kernel(run_rank, int32(7, 7, 7, 7)), int32(0, 1, 2, 3), "Rows")


@rank_kernel.case("five slots, N = 8", hint="Lanes behind the end must not count: is their key the largest?")
def _(rank_kernel):
    expect_equal(rank_kernel(run_rank, int32(3, 1, 2, 1, 3)), int32(3, 0, 2, 1, 4), "Rows")


@rank_kernel.case("one slot, N = 1")
def _(rank_kernel):
    expect_equal(rank_kernel(run_rank, int32(5)), int32(0), "Rows")


@rank_kernel.case("no slots, N = 1", hint="With n = 0 nothing may be written.")
def _(rank_kernel):
    expect_equal(rank_kernel(run_rank, int32()), int32(), "Rows")


@rank_kernel.case("expert 32766", hint="`other` has to lie behind every expert, and every key within int32.")
def _(rank_kernel):
    expect_equal(rank_kernel(run_rank, int32(32766, 5, 32766)), int32(1, 0, 2), "Rows")


@rank_kernel.case("132 slots, N = 256", hint="Does a slot's number reach into the next expert's? Keep the two apart.")
def _(rank_kernel):
    experts = random_experts(132)
    expect_equal(rank_kernel(run_rank, experts), expected_rank(experts), "Rows")


@rank_kernel.case("300 slots, N = 512", hint="N is given. A program of N lanes, and a key with room for N slots.")
def _(rank_kernel):
    experts = random_experts(300)
    expect_equal(rank_kernel(run_rank, experts), expected_rank(experts), "Rows")


# Triton's interpreter takes about a second for a case, and several on a busy machine.
place = KernelChecker(
    "48.4",
    "place",
    done="Your lines are in the router: equal to `reuse` in every leaf, in one launch.",
    seconds=LIMIT_S,
)


def _expect_placed(place: Callable, experts: list[list[int | None]]) -> None:
    """Walk over the picks in the order of their rows."""
    written = place(run_place, experts)
    k = sum(expert is not None for expert in experts[0])
    lanes = [(expert, i) for i, expert in enumerate(e for row in experts for e in row) if expert is not None]
    slot_of = {i: i // len(experts[0]) * k + i % len(experts[0]) for _, i in lanes}
    combine = [slot_of[i] for _, i in sorted(lanes)]
    expected = {
        "Gate": torch.tensor([(i + 1) / 8 for _, i in sorted(lanes)]),
        "Combine": int32(*combine),
        "Dispatch": int32(*(combine.index(slot) for slot in range(len(combine)))),
    }
    for name in expected:
        expect_equal(written[name], expected[name], name)


@place.case("two tokens, two picks each", hint="Row r holds the weight, and the slot, of the pick that belongs there.")
def _(place):
    _expect_placed(place, [[3, 1], [2, 0]])


@place.case("not its own inverse", hint="`Combine` leads from a row to its slot, `Dispatch` from a slot to its row.")
def _(place):
    _expect_placed(place, [[1, 2], [2, 0]])


@place.case("three picks in four lanes", hint="A lane without a pick must write nothing: use `is_pick`.")
def _(place):
    _expect_placed(place, [[1, 2, 0, None], [2, 5, 1, None]])


@place.case("in the router, one token")
def _(place):
    assert_equivalent(place(run_route, _logits(1), 4), reused(1, 32, 4, BF16))


@place.case("in the router, three tokens")
def _(place):
    assert_equivalent(place(run_route, _logits(3), 4), reused(3, 32, 4, BF16))


@place.case("in the router, 16 tokens", hint="64 slots: does a slot's number reach into the next expert's?")
def _(place):
    assert_equivalent(place(run_route, _logits(16), 4), reused(16, 32, 4, BF16))


@place.case("in the router, k = 3")
def _(place):
    assert_equivalent(place(run_route, _logits(3), 3), route(_logits(3), 3))


@place.cost("one launch")
def _(place):
    alone = place.__wrapped__.launched  # without the memory that the checker prepares, which takes launches too
    logits = _logits(3)
    seen = launches(lambda: route_with(alone, logits, 4))
    if len(seen) > 1:
        raise Mismatch(f"{len(seen)} launches: {', '.join(seen)}")


def _logits(tokens: int) -> torch.Tensor:
    """The logits of which `reused(tokens, 32, ...)` is the routing."""
    random = torch.Generator().manual_seed(tokens + 32)
    return torch.randn((tokens, 32), generator=random).to(BF16).to(device())
