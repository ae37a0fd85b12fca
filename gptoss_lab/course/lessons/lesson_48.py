"""The checkers of `48__one_launch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gptoss_lab.course.check import Checker, Mismatch, expect_equal
from gptoss_lab.course.lessons.check_kernels_48 import expected_rank, int32, place, random_experts, rank_kernel
from gptoss_lab.course.lessons.stand_ins_44 import reads

__all__ = ["first_rows", "place", "rank", "rank_kernel"]

SORTING = {"sort", "argsort", "msort", "topk", "kthvalue", "_unique", "_unique2", "unique_dim", "searchsorted"}


class _Operations(TorchDispatchMode):
    """Notes the name of each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operation imports the compiler, for seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def operations() -> Iterator[list[str]]:
    """Note the PyTorch operations of this thread."""
    with _Operations() as mode:
        yield mode.names


def _expect_no_read(answer: Callable, given: torch.Tensor) -> None:
    with reads() as read:
        answer.__wrapped__(given)  # without the guard, which reads too
    if read:
        raise Mismatch(
            f"`{read[0]}` reads values from the device: the host waits until all launches before it are done"
        )


def _expect_no_growth(answer: Callable, small: torch.Tensor, large: torch.Tensor, what: str) -> None:
    """The number of operations must not depend on the size of the input."""
    counts = []
    for given in (small, large):
        with operations() as names:
            answer.__wrapped__(given)
        counts.append(len(names))
    if counts[1] > counts[0]:
        raise Mismatch(f"{counts[0]} operations for {len(small)} {what}, {counts[1]} for {len(large)}: the loop shows")


rank = Checker("48.1", "rank", done="Nothing was sorted: each slot counted those that come before it.")


@rank.case("five slots", hint="A slot comes before another if its expert is smaller.")
def _(rank):
    expect_equal(rank(int32(3, 1, 4, 0, 2)), int32(3, 1, 4, 0, 2))


@rank.case("not its own inverse", hint="Return the row of each slot. What you return is the slot at each row.")
def _(rank):
    expect_equal(rank(int32(2, 0, 1)), int32(2, 0, 1))


@rank.case("two slots with one expert", hint="Of two slots with one expert, the lower slot comes first.")
def _(rank):
    expect_equal(rank(int32(3, 1, 2, 1, 3)), int32(3, 0, 2, 1, 4))


@rank.case("one expert for all", hint="Of two slots with one expert, the lower slot comes first.")
def _(rank):
    expect_equal(rank(int32(7, 7, 7, 7)), int32(0, 1, 2, 3))


@rank.case("one slot")
def _(rank):
    expect_equal(rank(int32(5)), int32(0))


@rank.case("no slots")
def _(rank):
    expect_equal(rank(int32()), int32())


@rank.case("132 slots, 32 experts", hint="Does a slot's number reach into the next expert's? Keep the two apart.")
def _(rank):
    experts = random_experts(132)
    expect_equal(rank(experts), expected_rank(experts))


@rank.case("300 slots, 2 experts", hint="Room for 132 slots, or for 256, is not enough: how many slots are there?")
def _(rank):
    experts = random_experts(300, 2)
    expect_equal(rank(experts), expected_rank(experts))


@rank.case("experts 5 and 32766", hint="Ids are int16 in `topk`, and can be this large. Does a key leave int32?")
def _(rank):
    experts = random_experts(1000, 2) * 32761 + 5
    expect_equal(rank(experts), expected_rank(experts))


@rank.case("every other entry of a longer list", hint="The input need not be contiguous.", hint_for=(RuntimeError,))
def _(rank):
    experts = random_experts(40)[::2]
    expect_equal(rank(experts), expected_rank(experts))


@rank.cost("nothing is sorted", hint="Compare every slot with every other, and count.")
def _(rank):
    with operations() as names:
        rank.__wrapped__(random_experts(12))
    found = [name for name in names if name in SORTING]
    if found:
        raise Mismatch(f"`{found[0]}` sorts")


@rank.cost("nothing is read from the device", hint="Stay with tensors.")
def _(rank):
    _expect_no_read(rank, random_experts(12))


@rank.cost("no loop over slots", hint="`experts[None, :] < experts[:, None]` compares all pairs at once.")
def _(rank):
    _expect_no_growth(rank, random_experts(4), random_experts(40), "slots")


first_rows = Checker("48.3", "first_rows", done="With these the last program finds every row without a sort.")


def _expected_first_rows(sizes: list[list[int]]) -> torch.Tensor:
    """Walk over the rows: expert by expert, and within an expert part by part."""
    first, row = [[0] * len(line) for line in sizes], 0
    for expert in range(len(sizes[0])):
        for part, line in enumerate(sizes):
            first[part][expert] = row
            row += line[expert]
    return torch.tensor(first, dtype=torch.int32)


def _expect_first_rows(answer: Callable, sizes: torch.Tensor) -> None:
    expect_equal(answer(sizes), _expected_first_rows(sizes.tolist()))


def _random_sizes(parts: int, experts: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(parts * 1000 + experts)
    return torch.randint(0, 5, (parts, experts), generator=random, dtype=torch.int32)


@first_rows.case(
    "one expert",
    hint="Expert 0 begins at row 0, and a part of it where the parts before it end: leave its own size out.",
)
def _(first_rows):
    _expect_first_rows(first_rows, torch.tensor([[2], [1], [3]], dtype=torch.int32))


@first_rows.case("one part", hint="Expert e begins where the experts before it end: leave its own size out.")
def _(first_rows):
    _expect_first_rows(first_rows, torch.tensor([[2, 1, 3]], dtype=torch.int32))


@first_rows.case("two parts", hint="Before an expert stand all rows of smaller experts, those of later parts too.")
def _(first_rows):
    _expect_first_rows(first_rows, torch.tensor([[2, 1], [1, 3]], dtype=torch.int32))


@first_rows.case("an expert and a part without rows")
def _(first_rows):
    _expect_first_rows(first_rows, torch.tensor([[1, 0, 2], [0, 0, 0], [3, 0, 1]], dtype=torch.int32))


@first_rows.case("5 parts, 32 experts")
def _(first_rows):
    _expect_first_rows(first_rows, _random_sizes(5, 32))


@first_rows.case("a transposed view", hint="The input need not be contiguous.", hint_for=(RuntimeError,))
def _(first_rows):
    _expect_first_rows(first_rows, _random_sizes(7, 3).t())


@first_rows.cost("nothing is read from the device", hint="Stay with tensors.")
def _(first_rows):
    _expect_no_read(first_rows, _random_sizes(3, 4))


@first_rows.cost("no loop over parts", hint="`cumsum(0)` adds up over the parts.")
def _(first_rows):
    _expect_no_growth(first_rows, _random_sizes(2, 4), _random_sizes(9, 4), "parts")
