"""A layer's experts, told what to do by a `Routing` alone.

`run_blocks` is plain PyTorch, to read and to check a routing with; it runs everywhere. `run_experts` multiplies with
triton_kernels' `matmul` straight from the checkpoint's MXFP4 bytes, and needs a GPU: on a CPU Triton's interpreter
computes BF16 wrongly, so there the plain version serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from gptoss_lab.model import Experts
from gptoss_lab.moe.generations import matmul_kernels
from gptoss_lab.moe.measure import require_cuda
from gptoss_lab.moe.routing import Routing

BLOCK = 16  # rows; the first line of a schedule
ALPHA = 1.702  # of the activation, gate * sigmoid(alpha * gate)


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


@dataclass(frozen=True)
class Projection:
    """One product of all experts, in the layout that `matmul` wants on this GPU."""

    weights: Any  # triton_kernels' `Tensor` of FP4 values, [experts, inputs, outputs]
    precision: Any  # its `PrecisionConfig`, with the scales
    bias: torch.Tensor  # float32 [experts, outputs]


@dataclass(frozen=True)
class PreparedExperts:
    """The experts of a layer on a GPU, ready for `run_experts`."""

    gate_up: Projection
    down: Projection
    activation: Any  # triton_kernels' `FusedActivation`


def prepare_experts(layer: Experts, device: torch.device | str = "cuda") -> PreparedExperts:
    """Bring a layer's MXFP4 blocks and scales to a GPU and into the layout of its matrix units.

    layer: `gptoss_lab.model.Experts`, filled. The bytes stay MXFP4; their order changes, and scales get zeros behind
    them up to a multiple of four. Biases become float32.

    Errors: RuntimeError without a CUDA device; `MissingKernels` without the generation of triton_kernels that has
    `matmul`.
    """
    require_cuda("an MXFP4 product of triton_kernels")
    kernels = matmul_kernels()
    swiglu = kernels.FnSpecs("swiglu", kernels.swiglu_fn, ("alpha", "limit"), reduction_n=2)
    return PreparedExperts(
        gate_up=_prepare(layer.gate_up_proj_blocks, layer.gate_up_proj_scales, layer.gate_up_proj_bias, device),
        down=_prepare(layer.down_proj_blocks, layer.down_proj_scales, layer.down_proj_bias, device),
        activation=kernels.FusedActivation(swiglu, (ALPHA, layer.limit)),
    )


def _prepare(blocks: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor, device: torch.device | str) -> Projection:
    kernels = matmul_kernels()
    values = blocks.to(device).flatten(-2).transpose(-1, -2)  # [experts, inputs / 2, outputs]
    scales = F.pad(scales.to(device), (0, -scales.shape[-1] % 4)).transpose(-1, -2)  # [experts, inputs / 32, outputs]
    weights = kernels.convert_layout(
        kernels.wrap_torch_tensor(values, dtype=kernels.FP4), kernels.make_default_matmul_mxfp4_w_layout(mx_axis=-2)
    )
    scales = kernels.convert_layout(
        kernels.wrap_torch_tensor(scales),
        kernels.make_default_matmul_mxfp4_w_scale_layout(mx_axis=-2, num_warps=8),
    )
    precision = kernels.PrecisionConfig(b_mx_scale=scales, b_microblock_size=32)
    return Projection(weights, precision, bias.to(device, torch.float32))


def run_experts(prepared: PreparedExperts, hidden: torch.Tensor, made: Routing) -> torch.Tensor:
    """Run a layer's experts on a GPU: gather, product, activation, product, scatter, sum. Four launches.

    hidden: bfloat16 [tokens, hidden] on the GPU. made: any `Routing` of these tokens with all experts in it.
    Returns the weighted sum of each token's picks, bfloat16 [tokens, hidden].

    Idea: vLLM's `triton_kernel_fused_experts` for the two products and what is fused into them.
    """
    matmul, k = matmul_kernels().matmul, made.n_experts_act
    if made.row_sorted_indx.shape[0] != len(hidden) * k:
        raise ValueError(
            f"hidden has {len(hidden)} tokens, the routing {made.row_sorted_indx.shape[0] // k}: route these tokens"
        )
    inner = matmul(
        hidden,
        prepared.gate_up.weights,
        prepared.gate_up.bias,
        a_ragged_metadata=made.ragged_metadata,
        gather_indx=made.col_sorted_indx // k,
        precision_config=prepared.gate_up.precision,
        fused_activation=prepared.activation,
    )  # [rows, inner]
    picks = matmul(
        inner,
        prepared.down.weights,
        prepared.down.bias,
        a_ragged_metadata=made.ragged_metadata,
        scatter_indx=made.col_sorted_indx,
        precision_config=prepared.down.precision,
        gammas=made.gate_scal,
    )  # [slots, hidden]
    return picks.view(len(hidden), k, -1).sum(1)  # [tokens, hidden]
