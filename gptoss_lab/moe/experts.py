"""A layer's experts, told what to do by a `Routing` alone. Plain PyTorch, to read and to check a routing with."""

from __future__ import annotations

import torch

from gptoss_lab.model import Experts
from gptoss_lab.moe.routing import Routing

BLOCK = 16  # rows; the first line of a schedule


def run_blocks(layer: Experts, hidden: torch.Tensor, made: Routing) -> torch.Tensor:
    """Run a layer's experts by nothing but a routing: a product for each entry of the schedule, on the CPU.

    hidden: floating [tokens, hidden]. Returns the weighted sum of each token's picks, [tokens, hidden].
    """
    ragged, k = made.ragged_metadata, made.n_experts_act
    slots, back = made.col_sorted_indx.cpu().long(), made.row_sorted_indx.cpu().long()  # [slots] each
    first, sizes = ragged.slice_offs.tolist(), ragged.slice_sizes.tolist()
    products = torch.zeros(len(slots), hidden.shape[1])  # [rows, hidden]
    schedule = ragged.block_schedule(BLOCK)
    for entry in schedule[schedule >= 0].tolist():
        expert, block = entry & 0xFFFF, entry >> 16
        rows = slice(first[expert] + block * BLOCK, first[expert] + min((block + 1) * BLOCK, sizes[expert]))
        if rows.start < rows.stop:
            products[rows] = layer.run_expert(expert, hidden[slots[rows] // k])
    weighted = products * made.gate_scal.cpu().float()[:, None]  # [rows, hidden]
    return weighted[back].view(len(hidden), k, -1).sum(1)  # [tokens, hidden]
