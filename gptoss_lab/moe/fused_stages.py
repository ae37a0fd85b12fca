"""The stages that the kernels of `gptoss_lab.moe.fused_kernels` are made of.

Values are cast to float32 before arithmetic, because Triton's interpreter computes BF16 wrongly.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait
from triton.language.target_info import cuda_capability_geq

from gptoss_lab.moe.generations import interpreting

INTERPRETED = tl.constexpr(interpreting())
PAIRS = tl.constexpr(128 * 128)  # compared at once; the compiler unrolls them, and takes a minute for 512 * 512


@triton.jit
def wait_for_earlier():
    """Wait until the kernel before this one on the stream is done, where this one may start before that.

    Nothing may be read or written ahead of it: the memory can be one that the earlier kernel still uses.
    """
    if not INTERPRETED:
        if cuda_capability_geq(9):
            gdc_wait()


@triton.jit
def order_keys(bits, column, NBITS: tl.constexpr, INF: tl.constexpr):
    """Unsigned keys above 0 that order as the floating values do; of equals, the lower column is the larger.

    bits: the values' bits, unsigned. INF: the bits of infinity if every NaN is to count as one positive NaN, else 0.
    """
    TOP: tl.constexpr = 1 << (NBITS - 1)
    if INF != 0:
        bits = tl.where((bits & (TOP - 1)) > INF, INF + 1, bits)
    ordered = bits ^ tl.where((bits & TOP) != 0, 2 * TOP - 1, TOP)
    return (ordered << 16) | (0xFFFF - column)


@triton.jit
def read_keys(keys, NBITS: tl.constexpr, dtype: tl.constexpr):
    """The columns and the float32 values of keys that `order_keys` made of `dtype`."""
    TOP: tl.constexpr = 1 << (NBITS - 1)
    NARROW: tl.constexpr = tl.uint16 if NBITS == 16 else tl.uint32
    ordered = keys >> 16
    bits = ordered ^ tl.where((ordered & TOP) != 0, TOP, 2 * TOP - 1)
    columns = 0xFFFF - (keys & 0xFFFF).to(tl.int32)
    return columns, bits.to(NARROW).to(dtype, bitcast=True).to(tl.float32)


@triton.jit
def add_as_topk(values, LEVELS: tl.constexpr, NEAR: tl.constexpr):
    """Sums over the last axis of 2 ** LEVELS values, [rows, 1], added in the order of triton_kernels' `topk`.

    The last bit of a weight depends on the order: another one changed one float32 in seven. On a GPU, values that one
    thread holds are added first, neighbour to neighbour, on NEAR levels. Then threads exchange sums, those that are
    farthest from each other first.
    """
    if INTERPRETED:
        values = tl.sum(values, 1, keep_dims=True)
    else:
        for level in tl.static_range(LEVELS):
            if level < NEAR:
                pairs = tl.reshape(values, [values.shape[0], values.shape[1] // 2, 2])
            else:
                pairs = tl.permute(tl.reshape(values, [values.shape[0], 2, values.shape[1] // 2]), [0, 2, 1])
            left, right = tl.split(pairs)
            values = left + right
    return values


@triton.jit
def choose(
    Logits,
    stride,
    first_token,
    n_tokens,
    n_experts,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
    PICKS: tl.constexpr,
    INF: tl.constexpr,
    NEAR: tl.constexpr,
):
    """Find the K largest logits of ROWS tokens, their softmax, and how often each expert was picked.

    Returns int32 experts, float32 weights, slots and is_pick, all [ROWS * PICKS], and int32 sizes [COLUMNS]. PICKS is
    K, rounded up to a power of two: what lies behind K, or belongs to no token, is no pick, and has expert 0x7FFF.
    """
    DTYPE: tl.constexpr = Logits.dtype.element_ty
    NBITS: tl.constexpr = DTYPE.primitive_bitwidth
    WIDE: tl.constexpr = tl.uint32 if NBITS == 16 else tl.uint64
    NARROW: tl.constexpr = tl.uint16 if NBITS == 16 else tl.uint32
    LEVELS: tl.constexpr = (PICKS > 1) + (PICKS > 2) + (PICKS > 4) + (PICKS > 8) + (PICKS > 16)
    tokens, columns = first_token + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_real = (tokens < n_tokens)[:, None] & (columns < n_experts)[None, :]
    logits = tl.load(Logits + tokens.to(tl.int64)[:, None] * stride + columns[None, :], mask=is_real, other=0.0)
    keys = order_keys(logits.to(NARROW, bitcast=True).to(WIDE), columns[None, :].to(WIDE), NBITS, INF)
    keys = tl.where(is_real, keys, 0)  # below every real key, a negative NaN's too
    places = tl.arange(0, PICKS)[None, :]
    best = tl.zeros([ROWS, PICKS], WIDE)
    for place in (tl.static_range if K <= 8 else range)(K):
        top = tl.max(keys, 1)[:, None]
        best = tl.where(places == place, top, best)
        keys = tl.where(keys == top, 0, keys)
    sizes = tl.sum((is_real & (keys == 0)).to(tl.int32), 0)
    experts, values = read_keys(best, NBITS, DTYPE)
    values = tl.where((tokens < n_tokens)[:, None], values, 0.0)  # a row without a token has no keys, and reads as NaN
    values = tl.where(places < K, values, float("-inf"))
    raised = tl.exp(values - tl.max(values, 1)[:, None])
    weights = tl.fdiv(raised, add_as_topk(raised, LEVELS, NEAR))
    numbers = tl.arange(0, ROWS * PICKS)
    tokens, places = first_token + numbers // PICKS, numbers % PICKS
    is_pick = (tokens < n_tokens) & (places < K)
    experts = tl.where(is_pick, tl.reshape(experts, [ROWS * PICKS]), 0x7FFF)
    return experts, tl.reshape(weights, [ROWS * PICKS]), tokens * K + places, is_pick, sizes


@triton.jit
def count_earlier(experts, slots):
    """Count for each pick the earlier slots with the same expert, int32 [picks]: at once, or in pieces of PAIRS."""
    PICKS: tl.constexpr = experts.shape[0]
    if PICKS * PICKS <= PAIRS:
        earlier = (experts[None, :] == experts[:, None]) & (slots[None, :] < slots[:, None])
        before = tl.sum(earlier.to(tl.int32), 1)
    else:
        SOME: tl.constexpr = PAIRS // PICKS
        before = tl.zeros_like(slots)
        for begin in range(0, PICKS, SOME):
            at = begin + tl.arange(0, SOME)
            other, slot = tl.gather(experts, at, 0), tl.gather(slots, at, 0)
            earlier = (other[None, :] == experts[:, None]) & (slot[None, :] < slots[:, None])
            before += tl.sum(earlier.to(tl.int32), 1)
    return before


@triton.jit
def split(Out, n_slots, n_experts, n_blocks, n_parts, LINES: tl.constexpr):
    """The parts of the one int32 allocation, in the order of `Plan.sizes` in `fused_routing`."""
    Dispatch = Out + n_slots
    SliceSizes = Dispatch + n_slots
    SliceOffs = SliceSizes + n_experts
    BlockOffs = SliceOffs + n_experts + 1
    Schedule = BlockOffs + LINES * (n_experts + 1)
    Sizes = Schedule + LINES * n_blocks
    Picked = Sizes + n_parts * n_experts
    return Out, Dispatch, SliceSizes, SliceOffs, BlockOffs, Schedule, Sizes, Picked


@triton.jit
def describe_few(
    SliceSizes, SliceOffs, BlockOffs, Schedule, sizes, n_experts, n_blocks, LINES: tl.constexpr, ENTRIES: tl.constexpr
):
    """`describe` and `schedule` for up to 16 tokens: no expert has more than one block, so all lines are alike.

    ENTRIES: a power of two, n_blocks or more.
    """
    columns, entries = tl.arange(0, sizes.shape[0]), tl.arange(0, ENTRIES)
    is_expert, has_block = columns < n_experts, (sizes > 0).to(tl.int32)
    both = (has_block << 16) | sizes  # two sums in one scan; neither reaches 65,536
    sums = tl.cumsum(both, 0) - both
    first, start = sums & 0xFFFF, sums >> 16
    total = tl.sum(has_block, 0)
    tl.store(SliceSizes + columns, sizes, mask=is_expert)
    tl.store(SliceOffs + columns, first, mask=is_expert)
    tl.store(SliceOffs + n_experts, tl.sum(sizes, 0))
    for line in tl.static_range(LINES):
        tl.store(BlockOffs + line * (n_experts + 1) + columns, start, mask=is_expert)
        tl.store(BlockOffs + line * (n_experts + 1) + n_experts, total)
        tl.store(Schedule + line * n_blocks + start, columns, mask=sizes > 0)
        tl.store(Schedule + line * n_blocks + entries, -1, mask=(entries >= total) & (entries < n_blocks))


@triton.jit
def describe(
    SliceSizes,
    SliceOffs,
    BlockOffs,
    sizes,
    n_experts,
    FIRST_LOG2: tl.constexpr,
    LINES: tl.constexpr,
    LINES_PAD: tl.constexpr,
):
    """Write sizes int32 [columns], their offsets, and a line of block offsets for each block size.

    Returns each expert's first row [columns], its first block and number of blocks, both [LINES_PAD, columns], and the
    most blocks that an expert has in any line. That is in the first one, whose blocks are the smallest.
    """
    columns, lines = tl.arange(0, sizes.shape[0]), tl.arange(0, LINES_PAD)
    is_expert, is_line = columns < n_experts, lines < LINES
    first = tl.cumsum(sizes, 0) - sizes
    tl.store(SliceSizes + columns, sizes, mask=is_expert)
    tl.store(SliceOffs + columns, first, mask=is_expert)
    tl.store(SliceOffs + n_experts, tl.sum(sizes, 0))
    log2 = FIRST_LOG2 + lines[:, None]
    blocks = tl.where(is_line[:, None], (sizes[None, :] + (1 << log2) - 1) >> log2, 0)
    starts = tl.cumsum(blocks, 1) - blocks
    at = BlockOffs + lines * (n_experts + 1)
    tl.store(at[:, None] + columns[None, :], starts, mask=is_line[:, None] & is_expert[None, :])
    tl.store(at + n_experts, tl.sum(blocks, 1), mask=is_line)
    return first, starts, blocks, (tl.max(sizes, 0) + (1 << FIRST_LOG2) - 1) >> FIRST_LOG2


@triton.jit
def schedule(Schedule, starts, blocks, most, n_blocks, LINES: tl.constexpr, ENTRIES: tl.constexpr):
    """Write each int of Schedule [LINES, n_blocks] once: entries `block << 16 | expert` in front, -1 behind.

    most: the most blocks that an expert has, of whatever size.
    """
    columns, lines = tl.arange(0, blocks.shape[1]), tl.arange(0, blocks.shape[0])
    at = Schedule + lines[:, None] * n_blocks
    for block in range(most):
        entry = tl.zeros_like(blocks) + (block << 16) + columns[None, :]
        tl.store(at + starts + block, entry, mask=block < blocks)
    totals = tl.sum(blocks, 1)[:, None]
    for begin in range(0, n_blocks, ENTRIES):
        entries = begin + tl.arange(0, ENTRIES)[None, :]
        tl.store(at + entries, -1, mask=(lines < LINES)[:, None] & (entries >= totals) & (entries < n_blocks))
