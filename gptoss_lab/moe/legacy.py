"""The router of triton_kernels 3.5.1, which fused what later generations spread over nine launches into
four."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gptoss_lab.moe.generations import legacy_routing
from gptoss_lab.moe.routing import Routing


@dataclass(frozen=True, eq=False)
class LegacyMetadata:
    """3.5.1's `ExptData` under the names of `RaggedTensorMetadata`, all int32; the last two have a line a
    block size."""

    slice_sizes: torch.Tensor  # [experts]
    slice_offs: torch.Tensor  # [experts + 1]
    block_offs_data: tuple[torch.Tensor, ...]  # 4 of [experts + 1]
    block_schedule_data: tuple[torch.Tensor, ...]  # 4 of [blocks]


def legacy(logits: torch.Tensor, k: int) -> Routing:
    """Route with triton_kernels 3.5.1's `routing()`, four launches. Needs that generation and a CUDA device.

    logits: [tokens, experts] on the GPU. The picks of a token are in ascending order of expert, not in
    descending order of weight, so slots differ from `reuse`; slices and schedule agree. `gate_scal` has the
    logits' dtype.

    Errors: `MissingKernels` when another generation is installed; both cannot be loaded in one process.
    """
    data, gather, _ = legacy_routing()(logits, k)
    return Routing(
        gate_scal=data.gate_scal,
        col_sorted_indx=gather.src_indx,
        row_sorted_indx=gather.dst_indx,
        ragged_metadata=LegacyMetadata(
            slice_sizes=data.expt_data.hist,
            slice_offs=data.expt_data.token_offs_raw,
            block_offs_data=tuple(data.expt_data.token_offs_pad.values()),
            block_schedule_data=tuple(data.expt_data.block_pid_map.values()),
        ),
        n_experts=data.n_expts_tot,
        n_experts_act=data.n_expts_act,
    )
