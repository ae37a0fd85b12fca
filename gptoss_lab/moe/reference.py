"""Routing in plain PyTorch, to read, and to hold the fast versions against.

It shares no step with `triton_kernels` and none with `gptoss_lab.moe.routing` but the class that it fills.
"""

from __future__ import annotations

import torch

from gptoss_lab.moe.generations import sparse_kernels
from gptoss_lab.moe.routing import Routing


def reference(logits: torch.Tensor, k: int, n_rows: int | None = None) -> Routing:
    """Choose k experts for each token and lay out the work of every expert.

    logits: bfloat16, float16 or float32 [tokens, experts], on any device, any strides. k: any number from 1
    to experts, not only a power of two. n_rows: only the first n_rows tokens are real.

    Returns what `reuse(topk(logits, k, n_rows), experts)` returns, on the logits' device: the same leaves,
    and `gate_scal` up to the rounding of the softmax. `gate_scal` of a row in no slice is 0. Computed on
    the CPU.

    Errors: ValueError for k or n_rows out of range.
    """
    tokens, experts = logits.shape
    real = tokens if n_rows is None else n_rows
    if not 1 <= k <= experts:
        raise ValueError(f"k is {k} with {experts} experts: pass 1 to {experts}")
    if not 0 <= real <= tokens:
        raise ValueError(f"n_rows is {n_rows} with {tokens} tokens: pass 0 to {tokens}")
    picks, weights = choose_experts(logits.detach().cpu()[:real], k)  # [real, k] each
    expert_of_slot = picks.flatten()  # [real * k]
    slots = tokens * k

    # Rows: all slots of expert 0 in order, then those of expert 1, and so on.
    slot_of_row = torch.argsort(expert_of_slot, stable=True)  # [real * k]
    row_of_slot = torch.empty_like(slot_of_row)
    row_of_slot[slot_of_row] = torch.arange(real * k)
    rows_of_expert = torch.bincount(expert_of_slot, minlength=experts)  # [experts]

    routing = Routing(
        gate_scal=pad(weights.flatten()[slot_of_row], slots, 0),
        col_sorted_indx=pad(slot_of_row.int(), slots, -1),
        row_sorted_indx=pad(row_of_slot.int(), slots, -1),
        ragged_metadata=lay_out_blocks(rows_of_expert.tolist(), slots),
        n_experts=experts,
        n_experts_act=k,
    )
    return move(routing, logits.device)


def choose_experts(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids int64 [tokens, k] and weights [tokens, k] in the logits' dtype, largest logit first.

    The order is that of the bits (`order_by_bits`), of equals the lower id first. The weights are the
    softmax over the k picks, taken in float32.
    """
    if logits.shape[1] % 32:
        # Where topk would pad the row, it is given positive NaNs only; see gptoss_lab.moe.routing.topk.
        logits = logits.masked_fill(logits.isnan(), torch.nan)
    order = torch.argsort(order_by_bits(logits), dim=1, descending=True, stable=True)  # [tokens, experts]
    picks = order[:, :k]
    weights = torch.softmax(torch.gather(logits, 1, picks).float(), dim=1).to(logits.dtype)
    return picks, weights


def order_by_bits(values: torch.Tensor) -> torch.Tensor:
    """Return integers in the total order of IEEE 754: -NaN, -inf, negative, -0.0, +0.0, positive, inf, +NaN.

    values: floating, any shape. Positive floats are ordered as their bits are; of a negative one all bits
    but the sign have to be flipped.
    """
    integer, magnitude = (torch.int32, 0x7FFFFFFF) if values.dtype == torch.float32 else (torch.int16, 0x7FFF)
    bits = values.contiguous().view(integer)
    return torch.where(bits < 0, bits ^ magnitude, bits)


def lay_out_blocks(slice_sizes: list[int], slots: int):
    """Return triton_kernels' `RaggedTensorMetadata` for slices of the given sizes, out of `slots` rows in
    all.

    Every slice is cut into blocks of 16 rows, and again of 32, 64 and 128; a block belongs to one slice. The
    schedule lists the blocks, `block << 16 | slice`, and has room for the most there can be of 16 rows.
    """
    metadata = sparse_kernels().RaggedTensorMetadata
    slices = len(slice_sizes)
    # With few rows each may be a block alone; with more, all slices but one waste a block of a single row.
    capacity = slots if slots <= slices else slices - 1 + -(-(slots - slices + 1) // 16)
    block_offsets, schedules = [], []
    for block_size in metadata.block_sizes():
        blocks = [-(-size // block_size) for size in slice_sizes]
        block_offsets.append(running_sums(blocks))
        schedule = [block << 16 | slice_id for slice_id, n in enumerate(blocks) for block in range(n)]
        schedules.append(schedule + [-1] * (capacity - len(schedule)))
    return metadata(
        slice_sizes=torch.tensor(slice_sizes, dtype=torch.int32),
        slice_offs=torch.tensor(running_sums(slice_sizes), dtype=torch.int32),
        block_offs_data=torch.tensor(block_offsets, dtype=torch.int32),
        block_schedule_data=torch.tensor(schedules, dtype=torch.int32).reshape(len(schedules), capacity),
    )


def running_sums(sizes: list[int]) -> list[int]:
    """Return 0, sizes[0], sizes[0] + sizes[1], ..., one number more than there are sizes."""
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    return sums


def pad(values: torch.Tensor, length: int, filler: int) -> torch.Tensor:
    """Return values [n] followed by fillers, [length]."""
    padded = torch.full((length,), filler, dtype=values.dtype)
    padded[: values.shape[0]] = values
    return padded


def move(routing: Routing, device: torch.device) -> Routing:
    """Return the same routing with every tensor on the device."""
    ragged = routing.ragged_metadata
    return Routing(
        gate_scal=routing.gate_scal.to(device),
        col_sorted_indx=routing.col_sorted_indx.to(device),
        row_sorted_indx=routing.row_sorted_indx.to(device),
        ragged_metadata=type(ragged)(
            slice_sizes=ragged.slice_sizes.to(device),
            slice_offs=ragged.slice_offs.to(device),
            block_offs_data=ragged.block_offs_data.to(device),
            block_schedule_data=ragged.block_schedule_data.to(device),
        ),
        n_experts=routing.n_experts,
        n_experts_act=routing.n_experts_act,
    )
