"""The checkers of `44__reuse`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch

from gptoss_lab.course.check import Checker, Mismatch, expect_equal
from gptoss_lab.course.lessons.lesson_42 import TAIL
from gptoss_lab.course.lessons.stand_ins_44 import own_sparse, reads, rebuilt, reused, route
from gptoss_lab.moe.equivalence import assert_equivalent, drop_padding
from gptoss_lab.moe.launches import launches

# Triton's interpreter takes about a second for a case, and several on a busy machine.
reuse = Checker(
    "44.1",
    "reuse",
    done="The same routing, leaf by leaf, in four launches: nine with `topk`.",
    seconds=120.0,
)


BF16, F32 = torch.bfloat16, torch.float32


@reuse.case("one token", hint="`combine` leads from a row to its slot, `dispatch` from a slot to its row.")
def _(reuse):
    assert_equivalent(route(reuse, 1, 32, 4, BF16), reused(1, 32, 4, BF16))


@reuse.case("33 tokens", hint="`gate_scal` holds a weight for each row, in the order of the rows.")
def _(reuse):
    assert_equivalent(route(reuse, 33, 32, 4, BF16), reused(33, 32, 4, BF16))


@reuse.case("24 experts, equal to rebuild", hint="There are as many slices as experts, and `col_sum` has that length.")
def _(reuse):
    routing = route(reuse, 3, 24, 4, BF16)
    assert_equivalent(routing, reused(3, 24, 4, BF16))
    assert_equivalent(drop_padding(routing), rebuilt(3, 24, 4, BF16))


@reuse.case("two picks a token, 40 experts", hint="k is not always 4: read it off `sparse.indx`.")
def _(reuse):
    assert_equivalent(route(reuse, 4, 40, 2, BF16), reused(4, 40, 2, BF16))


@reuse.case("float32 logits", hint="`gate_scal` keeps the dtype of `sparse.vals`.")
def _(reuse):
    assert_equivalent(route(reuse, 2, 32, 4, F32), reused(2, 32, 4, F32))


@reuse.case(
    "5 of 8 tokens are real",
    hint="Rows without a slot hold -1, and an index of -1 must not fail.",
    hint_for=(IndexError, RuntimeError),
)
def _(reuse):
    assert_equivalent(route(reuse, 8, 32, 2, BF16, 5), reused(8, 32, 2, BF16, 5))


@reuse.case("no tokens")
def _(reuse):
    assert_equivalent(route(reuse, 0, 32, 4, BF16), reused(0, 32, 4, BF16))


@reuse.cost("four launches", hint="No copy, no cast, no second count: take what `mask_metadata` holds.")
def _(reuse):
    sparse = own_sparse(1, 32, 4, BF16)
    alone = reuse.__wrapped__  # without the checker's guard, whose snapshots are launches too
    seen = launches(lambda: alone(sparse, 32))
    more = Counter(seen) - Counter(TAIL)
    if len(seen) > len(TAIL):
        raise Mismatch(f"{len(seen)} launches, {len(TAIL)} are enough. More than needed: {', '.join(more.elements())}")


@reuse.cost("nothing is read from the device", hint="Sizes are known from shapes. A value would make the host wait.")
def _(reuse):
    sparse = own_sparse(1, 32, 4, BF16)
    with reads() as read:
        reuse.__wrapped__(sparse, 32)
    if read:
        raise Mismatch(
            f"`{read[0]}` reads values from the device: the host waits until all launches before it are done"
        )


local_ids = Checker("44.2", "local_ids", done="An id of -1 stays -1, and so does every expert that lives elsewhere.")


def _ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int16)


def _map(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _int32(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


@local_ids.case("the first half lives here", hint="`expert_map[ids]` looks every id up at once.")
def _(local_ids):
    expect_equal(local_ids(_ids([0, 3], [2, 1]), _map(0, 1, -1, -1)), _int32([0, -1], [-1, 1]))


@local_ids.case("every other expert", hint="The local number is what the map says, not `id - first`.")
def _(local_ids):
    expect_equal(local_ids(_ids([1, 2, 5], [3, 0, 4]), _map(-1, 0, -1, 1, -1, 2)), _int32([0, -1, 2], [1, -1, -1]))


@local_ids.case("-1, and the last expert lives here", hint="`expert_map[-1]` is the map's last entry. Keep -1 apart.")
def _(local_ids):
    expect_equal(local_ids(_ids([3, -1], [-1, 0]), _map(-1, -1, 0, 1)), _int32([1, -1], [-1, -1]))


@local_ids.case("-1, and the first expert lives here", hint="-1 must not become any expert, 0 neither.")
def _(local_ids):
    expect_equal(local_ids(_ids([3, -1], [-1, 0]), _map(0, 1, -1, -1)), _int32([-1, -1], [-1, 0]))


@local_ids.case("all experts live here")
def _(local_ids):
    expect_equal(local_ids(_ids([2, 0], [1, 2]), _map(0, 1, 2)), _int32([2, 0], [1, 2]))


@local_ids.case("none lives here")
def _(local_ids):
    expect_equal(local_ids(_ids([2, 0], [-1, 2]), _map(-1, -1, -1)), _int32([-1, -1], [-1, -1]))


@local_ids.case("no tokens")
def _(local_ids):
    expect_equal(local_ids(torch.zeros((0, 4), dtype=torch.int16), _map(0, -1)), torch.zeros((0, 4), dtype=torch.int32))


@local_ids.case("33 tokens, 128 experts on 4 ranks")
def _(local_ids):
    random = torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randperm(128, generator=random)[:4] for _ in range(33)])
    expert_map = torch.tensor([e // 4 if e % 4 == 2 else -1 for e in range(128)], dtype=torch.int32)
    expected = [[e // 4 if e % 4 == 2 else -1 for e in row] for row in ids.tolist()]
    expect_equal(local_ids(ids.to(torch.int16), expert_map), torch.tensor(expected, dtype=torch.int32))


local_sum = Checker("44.3", "local_sum", done="What this rank did not compute leaves no trace in its sum.")
NAN, INF = float("nan"), float("inf")


def _column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def _expect_sum(
    learner: Callable,
    outputs: torch.Tensor,
    gate_scal: torch.Tensor,
    rows: list[int],
    is_local: list[list[bool]],
    expected: torch.Tensor,
) -> None:
    row_of_slot = torch.tensor(rows, dtype=torch.int32)
    result = learner(outputs, gate_scal, row_of_slot, torch.tensor(is_local, dtype=torch.bool))
    expect_equal(result, expected, rtol=1e-5, atol=1e-6)


@local_sum.case("all picks are local", hint="Slot s finds its output, and its weight, at row `row_of_slot[s]`.")
def _(local_sum):
    outputs, weights = _column(1.0, 2.0, 4.0, 8.0), torch.tensor([0.5, 0.25, 0.5, 0.75])
    _expect_sum(local_sum, outputs, weights, [2, 0, 1, 3], [[True, True]] * 2, _column(2.5, 6.5))


@local_sum.case("one pick of each token is local")
def _(local_sum):
    outputs, weights = _column(1.0, 2.0, 4.0, 8.0), torch.tensor([0.5, 0.25, 0.5, 0.75])
    _expect_sum(local_sum, outputs, weights, [2, 0, 1, 3], [[True, False], [False, True]], _column(2.0, 6.0))


@local_sum.case("rows of others hold NaN", hint="0 * NaN is NaN. Choose with `torch.where`, do not multiply.")
def _(local_sum):
    outputs, weights = _column(NAN, 2.0, 4.0, NAN), torch.tensor([0.5, 0.25, 0.5, 0.75])
    _expect_sum(local_sum, outputs, weights, [2, 0, 1, 3], [[True, False], [True, False]], _column(2.0, 0.5))


@local_sum.case("rows of others hold infinity")
def _(local_sum):
    outputs, weights = _column(INF, 2.0, -INF, 3.0), torch.tensor([0.5, 0.5, 0.5, 0.5])
    _expect_sum(local_sum, outputs, weights, [0, 1, 2, 3], [[False, True], [False, True]], _column(1.0, 1.5))


@local_sum.case("weights of others are NaN", hint="Mask the product of weight and output, not the output alone.")
def _(local_sum):
    outputs, weights = _column(1.0, 2.0, 4.0, 8.0), torch.tensor([NAN, 0.25, 0.5, NAN])
    _expect_sum(local_sum, outputs, weights, [2, 0, 1, 3], [[True, False], [True, False]], _column(2.0, 0.5))


@local_sum.case("a slot without a row", hint="A row of -1 is no row: it must not pick up the last one.")
def _(local_sum):
    outputs, weights = _column(1.0, 2.0, 4.0, NAN), torch.tensor([0.5, 0.5, 0.5, NAN])
    _expect_sum(local_sum, outputs, weights, [0, -1, 1, 2], [[True, False], [True, True]], _column(0.5, 3.0))


@local_sum.case(
    "a local NaN is a fault, and stays", hint="Do not turn every NaN into 0: that would hide a broken expert."
)
def _(local_sum):
    outputs, weights = _column(NAN, 2.0, 4.0, 8.0), torch.tensor([0.5, 0.5, 0.5, 0.5])
    _expect_sum(local_sum, outputs, weights, [0, 1, 2, 3], [[True, True], [True, False]], _column(NAN, 2.0))


@local_sum.case("a token without a local pick")
def _(local_sum):
    outputs, weights = torch.tensor([[1.0, 10.0], [NAN, NAN]]), torch.tensor([0.5, 0.5])
    expected = torch.tensor([[0.0, 0.0], [0.5, 5.0]])
    _expect_sum(local_sum, outputs, weights, [1, 0], [[False], [True]], expected)


@local_sum.case("no tokens")
def _(local_sum):
    nothing = torch.zeros((0, 3))
    result = local_sum(
        nothing, torch.zeros(0), torch.zeros(0, dtype=torch.int32), torch.zeros((0, 4), dtype=torch.bool)
    )
    expect_equal(result, nothing)


@local_sum.case("33 tokens, hidden 8", hint="Weights are in the order of the rows, as `gate_scal` is.")
def _(local_sum):
    random = torch.Generator().manual_seed(0)
    rows = torch.randperm(33 * 4, generator=random)
    is_local = torch.rand((33, 4), generator=random) < 0.5
    outputs, weights = torch.randn((132, 8), generator=random), torch.rand(132, generator=random)
    outputs[rows[~is_local.flatten()]] = NAN
    expected = torch.zeros(33, 8, dtype=torch.float64)
    for slot, row in enumerate(rows.tolist()):
        if is_local[slot // 4, slot % 4]:
            expected[slot // 4] += outputs[row].double() * weights[row].double()
    _expect_sum(local_sum, outputs, weights, rows.tolist(), is_local.tolist(), expected.float())
