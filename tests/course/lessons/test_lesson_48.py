"""The checkers of lesson 48 tell wrong answers apart, and what the lesson shows is so."""

from __future__ import annotations

import json

import pytest
import torch

import gptoss_lab.moe  # noqa: F401  It chooses the interpreter, before anything imports triton.

# isort: split
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

from gptoss_lab.course import figures, lab
from gptoss_lab.course.check import Mismatch
from gptoss_lab.course.lessons import draw_48, kernels_48, one_launch_48, record_48
from gptoss_lab.course.lessons.lesson_48 import first_rows, place, rank, rank_kernel
from gptoss_lab.course.lessons.waits_48 import NINE, WAITS, Wait, find_levels, find_longest_chain
from gptoss_lab.moe.fused_routing import TWO_LAUNCHES, route
from gptoss_lab.moe.generations import interpreting
from gptoss_lab.moe.launches import launches
from gptoss_lab.moe.routing import reuse, topk


def ranks(before, after=lambda counted: counted.sum(1, dtype=torch.int32)):
    """An answer to exercise 48.1: which slots come before which, from the ids and slots of both."""

    def answer(experts):
        slots = torch.arange(len(experts))
        return after(before(experts[None, :].long(), experts[:, None].long(), slots[None, :], slots[:, None]))

    return answer


def right(other, mine, slot, own):
    return (other < mine) | ((other == mine) & (slot < own))


def sorts_a_list(experts):
    order = sorted(range(len(experts)), key=experts.tolist().__getitem__)
    return torch.tensor([order.index(slot) for slot in range(len(experts))], dtype=torch.int32)


def loops_over_slots(experts):
    rows = torch.zeros(len(experts), dtype=torch.int32)
    for slot in range(len(experts)):
        rows[slot] = (experts < experts[slot]).sum() + (experts[:slot] == experts[slot]).sum()
    return rows


def in_place(experts):
    order = experts.mul_(len(experts)).add_(torch.arange(len(experts), dtype=torch.int32)).long()
    return (order[None, :] < order[:, None]).sum(1, dtype=torch.int32)


def key_in_float32(experts):
    key = experts.float() * len(experts) + torch.arange(len(experts))
    return (key[None, :] < key[:, None]).sum(1, dtype=torch.int32)


def narrow_key(experts):
    order = (experts << 17) | torch.arange(len(experts), dtype=torch.int32)
    return (order[None, :] < order[:, None]).sum(1, dtype=torch.int32)


RANK = {
    "a constant": (lambda experts: torch.tensor([3, 1, 4, 0, 2], dtype=torch.int32), "every time"),
    "argsort": (lambda experts: torch.argsort(experts, stable=True).int(), "What you return is the slot at each row"),
    "argsort twice": (
        lambda experts: torch.argsort(torch.argsort(experts, stable=True)).int(),
        "cost 'nothing is sorted': `sort` sorts",
    ),
    "no order among equals": (
        ranks(lambda other, mine, slot, own: other < mine),
        "case 'two slots with one expert'",
    ),
    "the later slot first": (
        ranks(lambda other, mine, slot, own: (other < mine) | ((other == mine) & (slot > own))),
        "the lower slot comes first",
    ),
    "counts itself": (
        ranks(lambda other, mine, slot, own: (other < mine) | ((other == mine) & (slot <= own))),
        "case 'five slots'",
    ),
    "int64": (ranks(right, lambda counted: counted.sum(1)), "has dtype torch.int64, expected torch.int32"),
    "a key for 100 slots": (
        ranks(lambda other, mine, slot, own: other * 100 + slot < mine * 100 + own),
        "case '132 slots, 32 experts'",
    ),
    "a key for 132 slots": (
        ranks(lambda other, mine, slot, own: other * 132 + slot < mine * 132 + own),
        "case '300 slots, 2 experts'",
    ),
    "a key that leaves int32": (narrow_key, "case 'experts 5 and 32766'"),
    "a key in float32": (key_in_float32, "case 'experts 5 and 32766'"),
    "in place": (in_place, "the function changed its input: `experts`"),
    "needs a slot": (lambda experts: ranks(right)(experts) + 0 * experts.max(), "case 'no slots'"),
    "a Python sort": (sorts_a_list, "cost 'nothing is read from the device': `tolist` reads values"),
    "a loop": (loops_over_slots, "cost 'no loop over slots'"),
    "no return": (lambda experts: None, "does every way through the function `return`?"),
}


@triton.jit
def no_mask_on_the_store(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    order = (tl.load(Experts + slots, mask=slots < n, other=0x7FFF) << 16) | slots
    tl.store(Rows + slots, tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1))


@triton.jit
def zero_for_no_slot(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    order = (tl.load(Experts + slots, mask=slots < n, other=0) << 16) | slots
    tl.store(Rows + slots, tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1), mask=slots < n)


@triton.jit
def no_mask_on_the_load(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    experts = tl.load(Experts + slots)
    before = (experts[None, :] < experts[:, None]) | (
        (experts[None, :] == experts[:, None]) & (slots[None, :] < slots[:, None])
    )
    tl.store(Rows + slots, tl.sum(before.to(tl.int32), 1), mask=slots < n)


@triton.jit
def experts_alone(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    experts = tl.load(Experts + slots, mask=slots < n, other=0x7FFF)
    tl.store(Rows + slots, tl.sum((experts[None, :] < experts[:, None]).to(tl.int32), 1), mask=slots < n)


@triton.jit
def slots_by_row(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    order = (tl.load(Experts + slots, mask=slots < n, other=0x7FFF) << 16) | slots
    tl.store(Rows + tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1), slots, mask=slots < n)


@triton.jit
def four_bits_for_a_slot(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    order = tl.load(Experts + slots, mask=slots < n, other=0x7FFF) * 16 + slots
    tl.store(Rows + slots, tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1), mask=slots < n)


@triton.jit
def lanes_for_256(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, 256)
    order = (tl.load(Experts + slots, mask=slots < n, other=0x7FFF) << 16) | slots
    tl.store(Rows + slots, tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1), mask=slots < n)


@triton.jit
def a_factor_of_256(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    order = tl.load(Experts + slots, mask=slots < n, other=0x7FFF) * 256 + slots
    tl.store(Rows + slots, tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1), mask=slots < n)


@triton.jit
def eight_bits_for_a_slot(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    order = (tl.load(Experts + slots, mask=slots < n, other=0x7FFF) << 8) | slots
    tl.store(Rows + slots, tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1), mask=slots < n)


@triton.jit
def from_entry_1(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    order = (tl.load(Experts + slots, mask=slots < n, other=0x7FFF) << 16) | slots
    tl.store(Rows + slots + 1, tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1), mask=slots < n)


@triton.jit
def too_many_bits(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    order = (tl.load(Experts + slots, mask=slots < n, other=0x7FFF) << 17) | slots
    tl.store(Rows + slots, tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1), mask=slots < n)


@triton.jit
def works_in_experts(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    order = (tl.load(Experts + slots, mask=slots < n, other=0x7FFF) << 16) | slots
    tl.store(Experts + slots, order, mask=slots < n)
    tl.store(Rows + slots, tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1), mask=slots < n)


@triton.jit
def stores_nothing(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    tl.load(Experts + slots, mask=slots < n, other=0x7FFF)


@triton.jit
def unknown_name(Experts, Rows, n, N: tl.constexpr):
    tl.store(Rows, nowhere)  # noqa: F821


@triton.jit
def another_signature(Experts, Rows):
    tl.store(Rows, tl.load(Experts))


def not_a_kernel(Experts, Rows, n, N):
    Rows[:] = one_launch_48.rank(Experts)


RANK_KERNEL = {
    "no mask on the store": (no_mask_on_the_store, "the kernel wrote outside of `Rows`, which has 5 entries: at 5"),
    "expert 0 for no slot": (zero_for_no_slot, "case 'five slots, N = 8'"),
    "no mask on the load": (no_mask_on_the_load, "Lanes behind the end must not count"),
    "no order among equals": (experts_alone, "case 'one expert for all'"),
    "slots by row": (slots_by_row, "case 'four slots, N = 4'"),
    "four bits for a slot": (four_bits_for_a_slot, "case '132 slots, N = 256'"),
    "256 lanes": (lanes_for_256, "case '300 slots, N = 512'"),
    "a factor of 256": (a_factor_of_256, "case '300 slots, N = 512'"),
    "eight bits for a slot": (eight_bits_for_a_slot, "case '300 slots, N = 512'"),
    "from entry 1": (from_entry_1, "Entry 0 was left out."),
    "a key that leaves int32": (too_many_bits, "is their key the largest?"),
    "works in Experts": (works_in_experts, "Store into `Rows` alone."),
    "stores nothing": (stores_nothing, "nothing was written to `Rows`"),
    "an unknown name": (unknown_name, "`rank_kernel` raised"),
    "another signature": (another_signature, "`rank_kernel` raised"),
    "not a kernel": (not_a_kernel, "put `@triton.jit` above its `def`"),
    "no function": (None, "pass the function `rank_kernel` itself, not None"),
}


def sums(experts=lambda total: total.cumsum(0) - total, parts=lambda sizes: sizes.cumsum(0) - sizes):
    """An answer to exercise 48.3 that is right but for the parts given."""
    return lambda sizes: (experts(sizes.sum(0)) + parts(sizes)).int()


def loops_over_parts(sizes):
    total = sizes.sum(0)
    earlier, lines = total.cumsum(0) - total, []
    for line in sizes:
        lines.append(earlier)
        earlier = earlier + line
    return torch.stack(lines).int()


def reads_the_sizes(sizes):
    sums()(sizes)
    return torch.tensor([[int(value) for value in line] for line in sums()(sizes).tolist()], dtype=torch.int32)


def adds_in_place(sizes):
    total = sizes.sum(0)
    before = sizes.cumsum(0) - sizes
    sizes += total.int()
    return (total.cumsum(0) - total + before).int()


def by_view(sizes):
    return sums()(sizes.view(-1).view(sizes.shape))


def part_by_part(sizes):
    return (sizes.flatten().cumsum(0) - sizes.flatten()).view(sizes.shape).int()


FIRST_ROWS = {
    "a constant": (lambda sizes: torch.tensor([[0, 2, 3]], dtype=torch.int32), "every time"),
    "with its own size, of the expert": (sums(experts=lambda total: total.cumsum(0)), "leave its own size out"),
    "with its own size, of the part": (
        sums(parts=lambda sizes: sizes.cumsum(0)),
        "a part of it where the parts before it end: leave its own size out",
    ),
    "parts alone": (sums(experts=torch.zeros_like), "case 'one part'"),
    "experts alone": (sums(parts=torch.zeros_like), "case 'one expert'"),
    "part by part": (part_by_part, "those of later parts too"),
    "experts of its own part": (
        lambda sizes: (sizes.cumsum(1) - sizes + sizes.cumsum(0) - sizes).int(),
        "case 'two parts'",
    ),
    "int64": (lambda sizes: sums()(sizes).long(), "has dtype torch.int64, expected torch.int32"),
    "in place": (adds_in_place, "the function changed its input: `sizes`"),
    "a view": (by_view, "case 'a transposed view'"),
    "reads": (reads_the_sizes, "cost 'nothing is read from the device': `tolist` reads values"),
    "a loop": (loops_over_parts, "cost 'no loop over parts'"),
}


@triton.jit
def count_before(experts, slots):
    order = (experts << 16) | slots
    return tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1)


@triton.jit
def weights_by_slot(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    rows = count_before(experts, slots)
    tl.store(Gate + slots, weights, mask=is_pick)
    tl.store(Combine + rows, slots, mask=is_pick)
    tl.store(Dispatch + slots, rows, mask=is_pick)


@triton.jit
def exchanged(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    rows = count_before(experts, slots)
    tl.store(Gate + rows, weights, mask=is_pick)
    tl.store(Dispatch + rows, slots, mask=is_pick)
    tl.store(Combine + slots, rows, mask=is_pick)


@triton.jit
def no_mask(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    rows = count_before(experts, slots)
    tl.store(Gate + rows, weights)
    tl.store(Combine + rows, slots)
    tl.store(Dispatch + slots, rows)


@triton.jit
def no_mask_on_dispatch(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    rows = count_before(experts, slots)
    tl.store(Gate + rows, weights, mask=is_pick)
    tl.store(Combine + rows, slots, mask=is_pick)
    tl.store(Dispatch + slots, rows)


@triton.jit
def no_weights(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    rows = count_before(experts, slots)
    tl.store(Combine + rows, slots, mask=is_pick)
    tl.store(Dispatch + slots, rows, mask=is_pick)


@triton.jit
def equals_in_one_row(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    rows = tl.sum((experts[None, :] < experts[:, None]).to(tl.int32), 1)
    tl.store(Gate + rows, weights, mask=is_pick)
    tl.store(Combine + rows, slots, mask=is_pick)
    tl.store(Dispatch + slots, rows, mask=is_pick)


@triton.jit
def counts_itself(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    order = (experts << 16) | slots
    rows = tl.sum((order[None, :] <= order[:, None]).to(tl.int32), 1)
    tl.store(Gate + rows, weights, mask=is_pick)
    tl.store(Combine + rows, slots, mask=is_pick)
    tl.store(Dispatch + slots, rows, mask=is_pick)


@triton.jit
def a_place_of_four_bits(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    order = (experts << 4) | slots
    rows = tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1)
    tl.store(Gate + rows, weights, mask=is_pick)
    tl.store(Combine + rows, slots, mask=is_pick)
    tl.store(Dispatch + slots, rows, mask=is_pick)


@triton.jit
def tokens_in_combine(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    rows = count_before(experts, slots)
    tl.store(Gate + rows, weights, mask=is_pick)
    tl.store(Combine + rows, slots // 4, mask=is_pick)
    tl.store(Dispatch + slots, rows, mask=is_pick)


def placed_by_torch(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    Combine[:] = torch.argsort(experts, stable=True)


PLACE = {
    "weights by slot": (weights_by_slot, "Row r holds the weight, and the slot"),
    "the lists exchanged": (exchanged, "Combine: "),
    "no mask": (no_mask, "case 'three picks in four lanes': the kernel wrote outside of `Gate`"),
    "no mask on Dispatch": (no_mask_on_dispatch, "the kernel wrote outside of `Dispatch`"),
    "four bits for a slot": (a_place_of_four_bits, "case 'in the router, 16 tokens'"),
    "no weights": (no_weights, "nothing was written to `Gate`"),
    "equals in one row": (equals_in_one_row, "Do two slots go to one place?"),
    "counts itself": (counts_itself, "a slot does not count itself"),
    "tokens in Combine": (tokens_in_combine, "Combine: "),
    "an unknown name": (unknown_name, "`place` raised"),
    "not a kernel": (placed_by_torch, "put `@triton.jit` above its `def`"),
    "no function": (0, "pass the function `place` itself, not 0"),
}
WRONG = {rank: RANK, rank_kernel: RANK_KERNEL, first_rows: FIRST_ROWS, place: PLACE}


def by_running_counts(experts):
    """Without comparing pairs: for each expert a running count over the slots."""
    picked = experts[:, None] == torch.arange(32768)[None, :]  # [slots, experts]
    total = picked.sum(0)
    rows = picked * (total.cumsum(0) - total + picked.cumsum(0) - 1)
    return rows.sum(1, dtype=torch.int32)


@triton.jit
def rank_by_two_comparisons(Experts, Rows, n, N: tl.constexpr):
    slots = tl.arange(0, N)
    experts = tl.load(Experts + slots, mask=slots < n, other=1 << 20)
    smaller = experts[None, :] < experts[:, None]
    earlier = (experts[None, :] == experts[:, None]) & (slots[None, :] < slots[:, None])
    tl.store(Rows + slots, tl.sum((smaller | earlier).to(tl.int32), 1), mask=slots < n)


RIGHT = [
    (rank, one_launch_48.rank),
    (rank, ranks(right)),
    (rank, by_running_counts),
    (rank_kernel, one_launch_48.rank_kernel),
    (rank_kernel, rank_by_two_comparisons),
    (first_rows, one_launch_48.first_rows),
    (first_rows, sums()),
    (place, one_launch_48.place),
]


@pytest.mark.parametrize(("checker", "answer"), RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)


def test_a_kernel_of_the_package_is_told_from_the_learners(capsys):
    rank_kernel(one_launch_48.rank_kernel)
    assert "that is the package's `rank_kernel`" in capsys.readouterr().out
    assert rank_kernel.last is not None and not rank_kernel.last.attempted
    rank_kernel(rank_by_two_comparisons)
    assert rank_kernel.last.passed, str(rank_kernel.last)


@triton.jit
def half_written(Experts, Rows, n, N: tl.constexpr):
    tl.store(Rows, 0)
    raise NotImplementedError


def stub_without_decorator(Experts, Rows, n, N):
    raise NotImplementedError


@pytest.mark.parametrize("stub", [half_written, stub_without_decorator], ids=lambda stub: stub.__name__)
def test_a_stub_is_not_attempted(stub):
    verdict = rank_kernel.verdict(stub)
    assert not verdict.attempted and "write `rank_kernel`" in str(verdict)


def test_fenced_memory_notices_a_write_on_either_side():
    for index in (-1, 3):
        memory = kernels_48.Fenced("Rows", 3, torch.int32, margin=2)
        memory.start[:3] = 0
        assert memory.read().tolist() == [0, 0, 0]
        memory.whole[2 + index] = 5
        with pytest.raises(Mismatch, match=f"outside of `Rows`, which has 3 entries: at {index}"):
            memory.read()


def test_the_body_has_no_signature_and_no_docstring():
    lines = one_launch_48.body(one_launch_48.rank_kernel).splitlines()
    assert lines[0] == "slots = tl.arange(0, N)" and lines[-1].startswith("tl.store(Rows")
    assert one_launch_48.body(count_before).startswith("order = ")


@pytest.mark.parametrize(("tokens", "k"), [(17, 4), (16, 16)])
def test_more_than_one_program_holds_is_refused(tokens, k):
    logits = torch.zeros(tokens, 32, dtype=torch.bfloat16, device=kernels_48.device())
    with pytest.raises(ValueError, match=f"{tokens} tokens, and k is {k}.*use route"):
        one_launch_48.route_with(one_launch_48.place, logits, k)


# --- who waits for whom


class Readers(TorchDispatchMode):
    """Notes which launch reads bytes that which other launch was the last to write, in Triton's interpreter."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.launch, self.in_kernel = 0, False
        self.writer_of, self.pairs = {}, set()
        builder = interpreter.interpreter_builder
        load, store, atomic = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw

        def noting_load(ptrs, mask, *rest):
            self.read(addresses(ptrs, mask))
            return load(ptrs, mask, *rest)

        def noting_store(ptrs, value, mask, *rest):
            self.write(addresses(ptrs, mask))
            return store(ptrs, value, mask, *rest)

        def noting_atomic(operation, ptr, value, mask, *rest):
            self.read(addresses(ptr, mask))
            self.write(addresses(ptr, mask))
            return atomic(operation, ptr, value, mask, *rest)

        monkeypatch.setattr(builder, "create_masked_load", noting_load)
        monkeypatch.setattr(builder, "create_masked_store", noting_store)
        monkeypatch.setattr(builder, "create_atomic_rmw", noting_atomic)
        kernel_class = type(tl.sum)
        run = kernel_class.run

        def noting_run(kernel, *args, **kwargs):
            self.launch, self.in_kernel = self.launch + 1, True
            try:
                return run(kernel, *args, **kwargs)
            finally:
                self.in_kernel = False

        monkeypatch.setattr(kernel_class, "run", noting_run)

    def read(self, places, reader=None):
        writers = {self.writer_of.get(place) for place in places} - {None, self.launch}
        self.pairs |= {(writer, reader or self.launch) for writer in writers}

    def write(self, places):
        self.writer_of |= dict.fromkeys(places, self.launch)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not self.in_kernel and name == "zeros":
            self.launch += 1
            self.write(bytes_of(result))
        if not self.in_kernel and name == "index":  # the copy of the index, then the index
            self.read(bytes_of(args[1][0]), self.launch + 1)
            self.read(bytes_of(args[0]), self.launch + 2)
            self.launch += 2
            self.pairs.add((self.launch - 1, self.launch))
        return result


def addresses(ptrs, mask):
    places = ptrs.data[mask.data.astype(bool)].flatten().tolist()
    size = ptrs.get_element_ty().primitive_bitwidth // 8
    return [place + byte for place in places for byte in range(size)]


def bytes_of(tensor):
    return range(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size())


@pytest.mark.skipif(not interpreting(), reason="reads are seen in the interpreter only")
@pytest.mark.parametrize("tokens", [1, 3])
def test_the_drawn_waits_are_what_the_kernels_read(tokens, monkeypatch):
    logits = torch.randn((tokens, 32), generator=torch.Generator().manual_seed(tokens)).to(torch.bfloat16)
    assert launches(lambda: reuse(topk(logits, 4), 32)) == NINE
    readers = Readers(monkeypatch)
    with readers:
        reuse(topk(logits, 4), 32)
    assert readers.launch == len(NINE)
    assert readers.pairs == {(wait.writer, wait.reader) for wait in WAITS}


def test_levels_and_the_longest_chain():
    waits = [Wait(1, 3, "a"), Wait(2, 3, "b"), Wait(3, 5, "c"), Wait(1, 5, "d")]
    assert find_levels(waits, 5) == [0, 0, 1, 0, 2]
    assert find_longest_chain(waits, 5) == [1, 3, 5]
    assert find_longest_chain([], 2) == [1]


# --- the record


PROVENANCE = {"device": "a device", "date": "a day", "versions": {"torch": "1", "triton": "2"}}
TIMES = {"rebuild": 30.0, "reuse": 12.0, "legacy": 6.0, "route": 2.0}


@pytest.fixture
def record(tmp_path):
    """A record of 1 and 8192 tokens; at 8192 `route` takes as long as `reuse`."""
    timings = [
        {"tokens": n, "experts": 32, "way": way, "mode": "graph", "median_us": us if n == 1 or way != "route" else 12.0}
        for n in (1, 8192)
        for way, us in TIMES.items()
    ]
    (tmp_path / record_48.FILE).write_text(json.dumps({"provenance": PROVENANCE, "timings": timings}))
    return record_48.read_record(tmp_path)


def test_a_record_is_read(record):
    assert (record.tokens(), record.experts()) == ([1, 8192], [32])
    assert record.ways() == ["rebuild", "reuse", "legacy", "route"]
    assert "a device, a day, torch 1, triton 2" in record.where


def test_without_a_record_a_line_says_how_to_take_one(tmp_path, capsys):
    assert record_48.read_record(tmp_path) is None
    assert record_48.RECORD_IT in capsys.readouterr().out
    assert draw_48.draw_speed(None) is None


def test_lines_have_the_times_of_three_ways(record):
    few, many = record_48.compare(record, 32)
    assert (few.tokens, few.launches, few.route_us, few.reuse_us, few.legacy_us) == (1, 1, 2.0, 12.0, 6.0)
    assert (many.tokens, many.launches, many.route_us) == (8192, len(NINE), 12.0)
    assert record_48.compare(record, 128) == []


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of lanes without a token
def test_the_launches_in_the_table_are_those_of_route():
    device = kernels_48.device()
    sizes = (1, 33, 257, TWO_LAUNCHES, TWO_LAUNCHES + 1) if device == "cuda" else (1, 33)
    for tokens in sizes:
        logits = torch.zeros((tokens, 32), dtype=torch.bfloat16, device=device)
        route(logits, 4)  # the first call clears the counters
        assert len(launches(lambda logits=logits: route(logits, 4))) == record_48.count_launches(tokens, 32)


@pytest.fixture
def shown(monkeypatch):
    """The pictures that are drawn, as text."""
    pictures = []
    monkeypatch.setattr(figures, "show", lambda fig, alt, caption="": pictures.append(figures.picture(fig, alt).alt))
    return pictures


def test_the_pictures_say_what_the_data_say(record, shown):
    draw_48.draw_waits(NINE, WAITS)
    draw_48.draw_orders((1, 0, 2), {"one rule": (1, 1), "another": (2, 3)})
    draw_48.draw_race()
    draw_48.draw_speed(record)
    waits, orders, race, speed = shown
    assert "Launches 1, 3, 4, 5, 8, 9 form the longest chain" in waits and "Launches 2, 6, 7 stand beside" in waits
    assert "in the order 1, 0, 2" in orders and "one rule, program 1, finds 1; another, program 2, finds 3" in orders
    assert "Without a barrier" in race
    assert "with 32 experts route is the fastest at 1 of 2 sizes" in speed


def test_the_record_says_what_the_prose_says():
    record = record_48.read_record(lab.DATA / "h200")
    lines = [line for experts in record.experts() for line in record_48.compare(record, experts)]
    assert {line.tokens for line in lines} >= {1, 256, 1024, 4096, 8192}
    for line in lines:
        share = line.route_us / line.legacy_us
        assert share < 0.9 if line.tokens <= 256 else 0.9 < share < 1.1 if line.tokens == 1024 else share > 1.1
        assert line.route_us < line.reuse_us or line.tokens > TWO_LAUNCHES
