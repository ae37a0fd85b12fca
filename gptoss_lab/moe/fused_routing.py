"""Routing in one launch: what `reuse(topk(logits, k), experts)` needs nine for, equal in every leaf.

The work is small and the launches are many, so the time goes into starting kernels, into their waiting for each other,
and into memory between them. Up to 256 tokens one launch does it all. From compute capability 9.0 on it starts while
the kernel ahead of it still runs, and then waits. The picture of the data and the kernels are in `fused_kernels`. What
was tried on the way, predicted and measured, is in docs/one_launch.md.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton.language.target_info import cuda_capability_geq

from gptoss_lab.moe import fused_kernels
from gptoss_lab.moe.counters import counters
from gptoss_lab.moe.generations import sparse_kernels
from gptoss_lab.moe.routing import WORD, Routing, check_topk, is_elsewhere, reuse, topk

ONE_PROGRAM = 16  # tokens; up to here no expert has more than one block of 16 rows
PAIRED = 128  # picks of one program, which it compares with each other; more where the last has too many sizes to add
ONE_LAUNCH = 256  # tokens
TWO_LAUNCHES = 4096  # tokens; above, `reuse` is as fast
WIDEST = 1024  # experts; a program holds whole rows
INFINITY = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}


def route(logits: torch.Tensor, k: int) -> Routing:
    """Route each token to its k best experts: one launch and two allocations for up to 256 tokens.

    logits: bfloat16, float16 or float32 [tokens, experts], experts contiguous. k: 1 to 32, at most the experts; it need
    not be a power of two. Returns a `Routing` with `gate_scal` in the logits' dtype, equal in every leaf to `reuse` of
    `topk`, whose order it takes over: -NaN < -inf < ... < -0.0 < +0.0 < ... < inf < +NaN, of equals the lower id, and
    where experts is not a multiple of 32, every NaN counts as positive. No bit pattern leads to an id of an expert
    that does not exist, or to a write out of bounds. There is no gradient.

    Up to 4096 tokens, and with a k that `topk` does not take for any number of them, two launches; above, and with more
    than 1024 experts, `reuse`. Nothing is read from the device. Calls on several streams and in several CUDA graphs may
    overlap. A call that takes several programs (above 16 tokens, and with k above 8 earlier) has one launch more, which
    zeroes a counter, if it is captured in a graph before any such call was made on that device.

    Errors: ValueError for any other shape, dtype, k, stride or device, and for a k that is no power of two with more
    than 1024 experts; TypeError for logits that are no tensor, and for a k that is no int.

    Idea: triton_kernels 3.5.1 fused routing into four launches; see vLLM issue 28986 for why it matters.
    """
    check_topk(logits, k, None, any_k_up_to=WIDEST)
    if is_elsewhere(logits):
        with torch.cuda.device(logits.device):
            return route(logits, k)
    tokens, experts = logits.shape
    if experts > WIDEST or (tokens > TWO_LAUNCHES and k & (k - 1) == 0):
        return reuse(topk(logits, k), experts)
    plan = make_plan(tokens, experts, k, logits.dtype, is_aligned(logits))
    out = torch.empty(plan.total, dtype=torch.int32, device=logits.device)
    gate = torch.empty(plan.gates, dtype=logits.dtype, device=logits.device)
    launch(plan, logits, gate, out)
    return plan.read(gate, out)


def is_aligned(logits: torch.Tensor) -> bool:
    """Whether Triton takes the rows that `topk` reads for aligned to 16 elements.

    With NaN made positive it reads a contiguous copy; see `topk`.
    """
    if logits.shape[1] % WORD:
        return logits.shape[1] % 16 == 0
    return logits.stride(0) % 16 == 0 and logits.data_ptr() % 16 == 0


@dataclass(frozen=True)
class Plan:
    """What a call does, for one number of tokens, experts, picks and a dtype."""

    tokens: int
    experts: int
    k: int
    lines: int
    blocks: int  # entries in a line of the schedule
    rows: int  # tokens of one program
    parts: int  # programs
    launches: int
    options: dict[str, Any]
    sizes: tuple[int, ...]  # of the parts of `out`, in the order of `fused_kernels.split`
    total: int
    gates: int  # entries: the gates, and in more than one part as many weights
    ragged: Any  # a `RaggedTensorMetadata` of the same shapes without memory
    kept: dict[int, dict] = field(init=False, default_factory=dict)  # compiled kernels, by device

    def read(self, gate: torch.Tensor, out: torch.Tensor) -> Routing:
        """Give the parts of the two allocations their names."""
        combine, dispatch, sizes, offs, block_offs, schedule = out.split_with_sizes(self.sizes)[:6]
        ragged = copy.copy(self.ragged)  # a copy is not checked again, which takes longer than all the rest here
        ragged.slice_sizes, ragged.slice_offs = sizes, offs
        ragged.block_offs_data = block_offs.view(self.lines, -1)
        ragged.block_schedule_data = schedule.view(self.lines, self.blocks)
        return Routing(
            gate_scal=gate[: self.tokens * self.k] if self.parts > 1 else gate,
            col_sorted_indx=combine,
            row_sorted_indx=dispatch,
            ragged_metadata=ragged,
            n_experts=self.experts,
            n_experts_act=self.k,
        )


@functools.lru_cache(maxsize=4096)
def make_plan(tokens: int, experts: int, k: int, dtype: torch.dtype, aligned: bool = True) -> Plan:
    """Settle how many programs take how many tokens, with how many warps. Found by measurement on an H200.

    aligned: whether `topk` may load 16 bytes at once, and so one of its threads holds neighbouring values.
    """
    ragged, up = sparse_kernels().RaggedTensorMetadata, triton.next_power_of_2
    log2 = ragged.block_sizes_log2()
    lines, slots, columns = len(log2), tokens * k, up(experts)
    blocks = ragged.max_n_blocks(experts, slots)
    least = up(max(tokens, 1)) * columns // 16384  # tokens of a program, or the last cannot hold the sizes of all
    launches = 1 if tokens <= ONE_LAUNCH else 2
    if tokens <= ONE_PROGRAM and up(max(tokens, 1)) * up(k) <= PAIRED:
        rows, warps = up(max(tokens, 1)), 1 if tokens * columns <= 64 else 4 if tokens * columns <= 4096 else 8
    elif launches == 1:
        rows, warps = (8, 8) if columns <= 32 else (4, 4)
        rows = max(min(rows, PAIRED // up(k)), least)
    else:
        rows, warps = (16, 4) if tokens <= 2048 else (32, 8)
        rows = max(1, min(rows, PAIRED // up(k), 4096 // columns))
    parts = triton.cdiv(tokens, rows) if tokens else 1
    sizes = [slots, slots, experts, experts + 1, lines * (experts + 1), lines * blocks]
    sizes += [parts * experts, slots] if parts > 1 else []
    options = {
        "ROWS": rows,
        "COLUMNS": columns,
        "K": k,
        "PICKS": up(k),
        "INF": INFINITY[dtype] if experts % WORD else 0,
        "NEAR": 3 if up(k) == 32 else (16 // dtype.itemsize).bit_length() - 1 if aligned else 0,
        "LINES": lines,
        "num_warps": warps,
    }
    if launches == 1:
        options["ENTRIES"] = min(256, up(max(blocks, 1)))
    if parts > 1:
        options |= {"LINES_PAD": up(lines), "FIRST_LOG2": log2[0]}
        options["PARTS"] = min(up(parts), max(1, 8192 // columns)) if launches == 2 else up(parts)
    if launches == 1 and parts > 1:
        options["SLOTS"] = up(slots)
    gates = 2 * slots if parts > 1 else slots
    shapes = ([experts], [experts + 1], [lines, experts + 1], [lines, blocks])
    empty = ragged(*(torch.empty(shape, dtype=torch.int32, device="meta") for shape in shapes))
    return Plan(
        tokens, experts, k, lines, blocks, rows, parts, launches, options, tuple(sizes), sum(sizes), gates, empty
    )


def launch(plan: Plan, logits: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> None:
    """Fill gate and out with one launch or two.

    Triton compiles a kernel anew for numbers and addresses that are multiples of 16, or are not. The plan and the
    device decide all of them for logits that are contiguous and aligned, so what was compiled for such is kept.
    """
    stride, numbers = logits.stride(0), (plan.tokens, plan.experts, plan.blocks)
    usual = stride == plan.experts and logits.data_ptr() % 16 == 0
    kept = plan.kept.setdefault(logits.device.index, {}) if usual else {}
    if plan.parts == 1:
        start(kept, fused_kernels.route_in_one, 1, (logits, stride, gate, out, *numbers), plan.options)
        return
    kernel = fused_kernels.route_by_last if plan.launches == 1 else fused_kernels.count
    counter = counters(logits.device).take()
    start(kept, kernel, plan.parts, (logits, stride, gate, out, counter, *numbers), plan.options)
    if plan.launches == 2:
        programs = max(triton.cdiv(plan.tokens * plan.k, 256), plan.experts)
        options = {"ROWS": plan.rows, "K": plan.k, "LINES": plan.lines, "BLOCK": 256}
        start(kept, fused_kernels.place, programs, (gate, out, *numbers, plan.parts), options)


def start(kept: dict, kernel: Any, programs: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Launch a kernel as it was kept, or as Triton finds it, which takes the host twice as long, and keep it."""
    run = kept.get(kernel)
    if run is not None:
        run(*arguments)
        return
    early = {"launch_pdl": True} if cuda_capability_geq(9) else {}  # it may start before the kernel ahead is done
    compiled = kernel[(programs,)](*arguments, **options, **early)
    if compiled is not None:  # the interpreter compiles nothing
        settled = [options[name] for name in kernel.arg_names if name in options]
        again = compiled[(programs, 1, 1)]
        kept[kernel] = lambda *arguments: again(*arguments, *settled)
