"""The stages into which `42__twenty_launches` cuts the routing, and its three exercises as later cells use them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gptoss_lab.moe.generations import sparse_kernels
from gptoss_lab.moe.launches import Launch, launches
from gptoss_lab.moe.routing import WORD, Routing, pack_bitmatrix, rows_per_program, topk


def cut_routing(k: int, n_experts: int) -> dict[str, Callable[[Any], Any]]:
    """Cut `rebuild(topk(logits, k), n_experts)` into six functions, each of which takes what the last one returned.

    The first takes logits [tokens, experts], the last returns a `Routing`. Together they do what `rebuild` does,
    launch for launch. "ragged metadata" takes any `SparseMatrix`, the first as well as the second.
    """
    kernels = sparse_kernels()

    def pack_again(picks: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, Any]:
        ids, weights = picks[0].to(torch.int16), picks[1].to(torch.bfloat16)  # [tokens, k]
        tokens, n_words, rows = len(ids), -(-n_experts // WORD), rows_per_program(len(ids))
        bits = torch.zeros((tokens, n_words), dtype=torch.uint32, device=ids.device)
        pack_bitmatrix[(-(-tokens // rows),)](bits, ids, tokens, n_words, ids.shape[1], ROWS=rows, PICKS=32)
        shape = [tokens, n_words * WORD]
        mask = kernels.wrap_torch_tensor(bits, dtype=kernels.BIT, shape=shape, shape_max=shape)
        return ids, torch.where(ids == -1, -1.0, weights), mask

    def lay_out(sparse: Any) -> tuple[Any, Any]:
        slots = sparse.mask_metadata.row_sorted_indx.shape[0]
        return sparse, kernels.make_ragged_tensor_metadata(sparse.mask_metadata.col_sum, slots)

    def weigh_rows(laid_out: tuple[Any, Any]) -> Routing:
        sparse, ragged = laid_out
        combine, dispatch = sparse.mask_metadata.col_sorted_indx, sparse.mask_metadata.row_sorted_indx
        return Routing(sparse.vals.flatten()[combine], combine, dispatch, ragged, n_experts, sparse.indx.shape[1])

    return {
        "topk": lambda logits: topk(logits, k),
        "the caller's cast": lambda sparse: (sparse.indx.to(torch.int64), sparse.vals),
        "pack again": pack_again,
        "second SparseMatrix": lambda packed: kernels.SparseMatrix(*packed),
        "ragged metadata": lay_out,
        "gate_scal": weigh_rows,
    }


def by_origin(stages: dict[str, Callable[[Any], Any]], value: Any) -> dict[str, list[str]]:
    """List the launches of each stage; each takes what the last one returned (exercise 42.1)."""
    table = {}
    for name, stage in stages.items():
        table[name] = launches(partial(stage, value))
        value = stage(value)
    return table


def find_repeat(names: list[str]) -> tuple[int, int, int] | None:
    """Find the longest run of names that occurs twice without overlap (exercise 42.2)."""
    for length in range(len(names) // 2, 0, -1):
        for first in range(len(names) - 2 * length + 1):
            for second in range(first + length, len(names) - length + 1):
                if names[first : first + length] == names[second : second + length]:
                    return first, second, length
    return None


def busy_share(timeline: list[Launch]) -> float:
    """Return the share of a timeline in which the device runs a kernel (exercise 42.3)."""
    if not timeline:
        return 0.0
    busy, end = 0.0, float("-inf")
    for launch in sorted(timeline, key=lambda launch: launch.started_us):
        stop = launch.started_us + launch.lasted_us
        busy += max(0.0, stop - max(launch.started_us, end))
        end = max(end, stop)
    return busy / (end - min(launch.launched_us for launch in timeline))
