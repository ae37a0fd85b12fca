"""What the reader of `48__one_launch` writes, and the one launch that the last piece is put into."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import torch

import gptoss_lab.moe  # noqa: F401  It chooses the interpreter, before anything imports triton.

# isort: split
import triton
import triton.language as tl

from gptoss_lab.moe.fused_routing import ONE_PROGRAM, PAIRED, Plan, is_aligned, make_plan
from gptoss_lab.moe.fused_stages import choose, describe_few, split
from gptoss_lab.moe.routing import Routing


def rank(experts: torch.Tensor) -> torch.Tensor:
    """Return the row of each slot without a sort: the slots that come before it, by expert and then by slot.

    experts: integers [slots], each an expert. Returns int32 [slots], the inverse of a stable argsort.
    """
    slots = torch.arange(len(experts), device=experts.device)
    order = experts.long() * len(experts) + slots  # [slots], no two alike
    return (order[None, :] < order[:, None]).sum(1, dtype=torch.int32)


@triton.jit
def rank_kernel(Experts, Rows, n, N: tl.constexpr):
    """As `rank`, in one program. Experts, Rows: int32 [n]. N: a power of two, n or more."""
    slots = tl.arange(0, N)
    experts = tl.load(Experts + slots, mask=slots < n, other=0x7FFF)  # behind every expert
    order = (experts << 16) | slots
    rows = tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1)
    tl.store(Rows + slots, rows, mask=slots < n)


def first_rows(sizes: torch.Tensor) -> torch.Tensor:
    """Return where each part's rows of each expert begin.

    sizes: int32 [parts, experts], how many slots of a part picked an expert. Returns int32 [parts, experts]: all slots
    of smaller experts, and those of this expert in earlier parts.
    """
    of_expert = sizes.sum(0)  # [experts]
    earlier_experts = of_expert.cumsum(0) - of_expert
    earlier_parts = sizes.cumsum(0) - sizes  # [parts, experts]
    return (earlier_experts + earlier_parts).int()


@triton.jit
def place(Gate, Combine, Dispatch, experts, weights, slots, is_pick):
    """Send each pick to its row. Where is_pick is False there is no pick, and expert is 0x7FFF."""
    order = (experts << 16) | slots
    rows = tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1)
    tl.store(Gate + rows, weights, mask=is_pick)
    tl.store(Combine + rows, slots, mask=is_pick)
    tl.store(Dispatch + slots, rows, mask=is_pick)


@triton.jit
def route_with_place(
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
    PLACE: tl.constexpr,
):
    """`fused_kernels.route_in_one` with a function of the reader's for the middle."""
    Combine, Dispatch, SliceSizes, SliceOffs, BlockOffs, Schedule, _, _ = split(
        Out, n_tokens * K, n_experts, n_blocks, 0, LINES
    )
    experts, weights, slots, is_pick, sizes = choose(
        Logits, stride, 0, n_tokens, n_experts, ROWS, COLUMNS, K, PICKS, INF, NEAR
    )
    PLACE(Gate, Combine, Dispatch, experts, weights, slots, is_pick)
    describe_few(SliceSizes, SliceOffs, BlockOffs, Schedule, sizes, n_experts, n_blocks, LINES, ENTRIES)


def route_with(place: Any, logits: torch.Tensor, k: int) -> Routing:
    """Route up to 16 tokens in one launch with `place` in the middle.

    place: a function under `triton.jit`, with the signature of `place` above. logits: bfloat16, float16 or float32
    [tokens, experts], experts contiguous. Errors: ValueError for more tokens.
    """
    plan = make_plan_for_one(logits, k)
    out = torch.empty(plan.total, dtype=torch.int32, device=logits.device)
    gate = torch.empty(plan.gates, dtype=logits.dtype, device=logits.device)
    launch_with(place, plan, logits, gate, out)
    return plan.read(gate, out)


def make_plan_for_one(logits: torch.Tensor, k: int) -> Plan:
    """Return the plan of a single program. ValueError if the tokens are too many for it."""
    tokens, experts = logits.shape
    plan = make_plan(tokens, experts, k, logits.dtype, is_aligned(logits))
    if plan.parts > 1:
        raise ValueError(
            f"logits have {tokens} tokens, and k is {k}: one program takes {ONE_PROGRAM} tokens and {PAIRED} picks at "
            "most, use route"
        )
    return plan


def launch_with(place: Any, plan: Plan, logits: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> None:
    """Fill gate and out in one launch."""
    numbers = (plan.tokens, plan.experts, plan.blocks)
    route_with_place[(1,)](logits, logits.stride(0), gate, out, *numbers, PLACE=place, **plan.options)


def body(kernel: Any) -> str:
    """Return what a function under `triton.jit` does, as written, without its signature and docstring."""
    source = textwrap.dedent(inspect.getsource(kernel.fn))
    (function,) = ast.parse(source).body
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    return textwrap.dedent("\n".join(source.splitlines()[statements[0].lineno - 1 :]))
