"""The kernels of `gptoss_lab.moe.fused_routing`: from logits to all that a `Routing` holds.

What they make of three tokens and four experts, with k = 2:

    logits         keys       experts  slots    row of a slot: the picks that come before it,
    .3 .9 .1 .5    2 4 1 3    1 3      0 1      by expert and then by slot
    .8 .2 .7 .1    4 2 3 1    0 2      2 3
    .1 .6 .2 .4    1 4 2 3    1 3      4 5      rows     0 1 2 3 4 5
                                                experts  0 1 1 2 3 3
    sizes of the experts  1 2 1 2               slots    2 0 4 3 1 5
    first row of each     0 1 3 4

The stages stand in `fused_stages`. `order_keys` turns logits into keys that order alike, no two of a row the same, and
`choose` takes the k largest in k passes. Nothing is sorted. One program (`route_in_one`) counts for each pick those
that come before it. Of several programs (`route_by_last`) each counts only within its own tokens, and the one that
finishes last adds up the sizes. The row of a pick is then: all picks of smaller experts, those of its expert in earlier
programs, those before it in its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gptoss_lab.moe.fused_stages import choose, count_earlier, describe, describe_few, schedule, split, wait_for_earlier


@triton.jit
def route_in_one(
    Logits,
    stride,
    Gate,
    Out,
    n_tokens,
    n_experts,
    n_blocks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
    PICKS: tl.constexpr,
    INF: tl.constexpr,
    NEAR: tl.constexpr,
    LINES: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    """One program for up to ROWS tokens, 16 at most: `describe_few` knows no second block."""
    wait_for_earlier()
    Combine, Dispatch, SliceSizes, SliceOffs, BlockOffs, Schedule, _, _ = split(
        Out, n_tokens * K, n_experts, n_blocks, 0, LINES
    )
    experts, weights, slots, is_pick, sizes = choose(
        Logits, stride, 0, n_tokens, n_experts, ROWS, COLUMNS, K, PICKS, INF, NEAR
    )
    order = (experts << 16) | slots
    rows = tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1)  # how many come before
    tl.store(Gate + rows, weights.to(Gate.dtype.element_ty), mask=is_pick)
    tl.store(Combine + rows, slots, mask=is_pick)
    tl.store(Dispatch + slots, rows, mask=is_pick)
    describe_few(SliceSizes, SliceOffs, BlockOffs, Schedule, sizes, n_experts, n_blocks, LINES, ENTRIES)


@triton.jit
def count_part(
    Logits,
    stride,
    Weights,
    Sizes,
    Picked,
    n_tokens,
    n_experts,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
    PICKS: tl.constexpr,
    INF: tl.constexpr,
    NEAR: tl.constexpr,
):
    """Choose for this program's tokens, and keep what the placing needs.

    Sizes int32 [parts, experts]: how many picked it. Weights [slots]: in the logits' dtype. Picked int32 [slots]:
    `before << 16 | expert`, where `before` counts the earlier picks of that expert in this part.
    """
    part, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    experts, weights, slots, is_pick, sizes = choose(
        Logits, stride, part * ROWS, n_tokens, n_experts, ROWS, COLUMNS, K, PICKS, INF, NEAR
    )
    before = count_earlier(experts, slots)
    tl.store(Sizes + part * n_experts + columns, sizes, mask=columns < n_experts)
    tl.store(Picked + slots, (before << 16) | experts, mask=is_pick)
    tl.store(Weights + slots, weights.to(Weights.dtype.element_ty), mask=is_pick)


@triton.jit
def is_last(Counter):
    """Whether this program is the last to come here. It then sees what the others wrote before they came.

    Counter: one int32 that nobody else uses meanwhile, 0 before the launch and 0 after it.
    """
    tl.debug_barrier()  # every thread of this program has written
    last = tl.atomic_add(Counter, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1
    if last:
        tl.atomic_xchg(Counter, 0, sem="relaxed", scope="gpu")
    return last


@triton.jit(do_not_specialize_on_alignment=["Counter"])
def route_by_last(
    Logits,
    stride,
    Gate,
    Out,
    Counter,
    n_tokens,
    n_experts,
    n_blocks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
    PICKS: tl.constexpr,
    INF: tl.constexpr,
    NEAR: tl.constexpr,
    LINES: tl.constexpr,
    LINES_PAD: tl.constexpr,
    FIRST_LOG2: tl.constexpr,
    ENTRIES: tl.constexpr,
    PARTS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """A program for each ROWS tokens, at most PARTS of them; the last to finish places all SLOTS picks."""
    wait_for_earlier()
    n_slots, n_parts = n_tokens * K, tl.num_programs(0)
    Combine, Dispatch, SliceSizes, SliceOffs, BlockOffs, Schedule, Sizes, Picked = split(
        Out, n_slots, n_experts, n_blocks, n_parts, LINES
    )
    count_part(Logits, stride, Gate + n_slots, Sizes, Picked, n_tokens, n_experts, ROWS, COLUMNS, K, PICKS, INF, NEAR)
    if is_last(Counter):
        slots, parts, columns = tl.arange(0, SLOTS), tl.arange(0, PARTS), tl.arange(0, COLUMNS)
        is_slot, is_size = slots < n_slots, (parts < n_parts)[:, None] & (columns < n_experts)[None, :]
        picked = tl.load(Picked + slots, mask=is_slot, other=0, cache_modifier=".cg")
        weights = tl.load(Gate + n_slots + slots, mask=is_slot, cache_modifier=".cg")
        at = Sizes + parts[:, None] * n_experts + columns[None, :]
        sizes = tl.load(at, mask=is_size, other=0, cache_modifier=".cg")  # [PARTS, COLUMNS]
        first, starts, blocks, most = describe(
            SliceSizes, SliceOffs, BlockOffs, tl.sum(sizes, 0), n_experts, FIRST_LOG2, LINES, LINES_PAD
        )
        first_in_part = tl.reshape(first[None, :] + tl.cumsum(sizes, 0) - sizes, [PARTS * COLUMNS])
        where = tl.where(is_slot, slots // (ROWS * K) * COLUMNS + (picked & 0xFFFF), 0)
        rows = tl.gather(first_in_part, where, 0) + (picked >> 16)
        tl.store(Gate + rows, weights, mask=is_slot)
        tl.store(Combine + rows, slots, mask=is_slot)
        tl.store(Dispatch + slots, rows, mask=is_slot)
        schedule(Schedule, starts, blocks, most, n_blocks, LINES, ENTRIES)


@triton.jit(do_not_specialize_on_alignment=["Counter"])
def count(
    Logits,
    stride,
    Gate,
    Out,
    Counter,
    n_tokens,
    n_experts,
    n_blocks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
    PICKS: tl.constexpr,
    INF: tl.constexpr,
    NEAR: tl.constexpr,
    LINES: tl.constexpr,
    LINES_PAD: tl.constexpr,
    FIRST_LOG2: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The first of two launches for many tokens: the last to finish adds up PARTS parts at a time, and places nothing.

    Sizes [parts, experts] is replaced by the sums over the parts before.
    """
    wait_for_earlier()
    n_slots, n_parts = n_tokens * K, tl.num_programs(0)
    _, _, SliceSizes, SliceOffs, BlockOffs, _, Sizes, Picked = split(Out, n_slots, n_experts, n_blocks, n_parts, LINES)
    count_part(Logits, stride, Gate + n_slots, Sizes, Picked, n_tokens, n_experts, ROWS, COLUMNS, K, PICKS, INF, NEAR)
    if is_last(Counter):
        columns, total = tl.arange(0, COLUMNS), tl.zeros([COLUMNS], tl.int32)
        for begin in range(0, n_parts, PARTS):
            parts = begin + tl.arange(0, PARTS)
            is_size = (parts < n_parts)[:, None] & (columns < n_experts)[None, :]
            at = Sizes + parts[:, None] * n_experts + columns[None, :]
            sizes = tl.load(at, mask=is_size, other=0, cache_modifier=".cg")
            tl.debug_barrier()  # with more threads than elements several load one, and one of them stores it
            tl.store(at, total[None, :] + tl.cumsum(sizes, 0) - sizes, mask=is_size)
            total += tl.sum(sizes, 0)
        describe(SliceSizes, SliceOffs, BlockOffs, total, n_experts, FIRST_LOG2, LINES, LINES_PAD)


@triton.jit
def place(
    Gate,
    Out,
    n_tokens,
    n_experts,
    n_blocks,
    n_parts,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The second launch: every program sends some slots to their rows, schedules some experts, clears some entries."""
    wait_for_earlier()
    program, programs = tl.program_id(0), tl.num_programs(0)
    n_slots, some = n_tokens * K, tl.arange(0, BLOCK)
    Combine, Dispatch, _, SliceOffs, BlockOffs, Schedule, Sizes, Picked = split(
        Out, n_slots, n_experts, n_blocks, n_parts, LINES
    )
    for begin in range(program * BLOCK, n_slots, programs * BLOCK):
        slots = begin + some
        mask = slots < n_slots
        picked = tl.load(Picked + slots, mask=mask, other=0)
        expert = picked & 0xFFFF
        rows = (picked >> 16) + tl.load(SliceOffs + expert, mask=mask)
        rows += tl.load(Sizes + slots // (ROWS * K) * n_experts + expert, mask=mask)
        tl.store(Gate + rows, tl.load(Gate + n_slots + slots, mask=mask), mask=mask)
        tl.store(Combine + rows, slots, mask=mask)
        tl.store(Dispatch + slots, rows, mask=mask)
    for line in tl.static_range(LINES):
        at, starts = Schedule + line * n_blocks, BlockOffs + line * (n_experts + 1)
        for expert in range(program, n_experts, programs):
            start, end = tl.load(starts + expert), tl.load(starts + expert + 1)
            for begin in range(start, end, BLOCK):
                tl.store(at + begin + some, ((begin - start + some) << 16) | expert, mask=begin + some < end)
        for begin in range(tl.load(starts + n_experts) + program * BLOCK, n_blocks, programs * BLOCK):
            tl.store(at + begin + some, -1, mask=begin + some < n_blocks)
