"""Expert parallelism: the routing of one rank, which owns some of the experts.

An expert map says for each expert its local number on this rank, or -1. The metadata of all experts is not
the metadata of the part, so vLLM maps the ids and packs again (`rebuild_local`). `remap` gets the part's
slices and schedule out of the whole's in one launch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from gptoss_lab.moe.generations import sparse_kernels
from gptoss_lab.moe.routing import Routing, rebuild_from


def rebuild_local(sparse: Any, expert_map: torch.Tensor, n_local: int) -> Routing:
    """Make one rank's `Routing` as vLLM does: map the ids, then pack them again.

    sparse: a `SparseMatrix` of `topk` over all experts. expert_map: int32 or int64 [experts]. n_local:
    experts on this rank. A slot whose expert lives elsewhere, or whose id is -1, is in no slice. 19
    launches with an int32 map: cast to int64, index by the map, three that keep -1 from meaning the map's
    last entry (one of them a cast of the map's int32, which an int64 map saves), and the 14 of
    `rebuild_from`.
    """
    ids = sparse.indx.to(torch.int64)  # [tokens, k]
    local = torch.where(ids < 0, ids, expert_map[ids])  # [tokens, k]
    return rebuild_from(local, sparse.vals, n_local)


def remap(routing: Routing, expert_map: torch.Tensor, n_local: int | None = None) -> Routing:
    """Make one rank's `Routing` out of that of all experts, in one launch.

    routing: one slice for each entry of the map; after `rebuild` use `drop_padding` first. expert_map:
    int32 [experts], local numbers ascending with the expert. n_local: experts on this rank; without it all
    slices are kept, and those after the rank's own have size -1.

    Slice sizes, offsets and schedule are the rank's. Rows, slots and `gate_scal` stay those of all experts:
    a row in no slice of this rank is not computed, and its output must not be summed (`slots_in_slices`).

    Errors: ValueError when the map's dtype or length does not fit. Idea: triton_kernels'
    `remap_ragged_tensor_metadata`.
    """
    ragged = routing.ragged_metadata
    if expert_map.dtype != torch.int32:
        raise ValueError(f"expert_map is {expert_map.dtype}: pass expert_map.int()")
    if expert_map.shape != ragged.slice_sizes.shape:
        raise ValueError(
            f"expert_map has shape {list(expert_map.shape)}, the routing {ragged.n_slices} slices: "
            "pass one entry for each slice, after drop_padding() if the routing is of rebuild()"
        )
    part = sparse_kernels().remap_ragged_tensor_metadata(ragged, expert_map)
    if n_local is None:
        return dataclasses.replace(routing, ragged_metadata=part)
    part = dataclasses.replace(
        part,
        slice_sizes=part.slice_sizes[:n_local],
        slice_offs=part.slice_offs[: n_local + 1],
        block_offs_data=part.block_offs_data[:, : n_local + 1],
    )
    return dataclasses.replace(routing, ragged_metadata=part, n_experts=n_local)


def rows_in_slices(routing: Routing) -> torch.Tensor:
    """Return which rows belong to a slice, bool [slots]. Nothing is read from the device."""
    ragged = routing.ragged_metadata
    rows = routing.col_sorted_indx.shape[0]
    first = ragged.slice_offs[:-1].clamp(min=0)  # [slices]
    after = first + ragged.slice_sizes.clamp(min=0)  # [slices]
    one = torch.ones_like(first)
    edges = torch.zeros(rows + 1, dtype=first.dtype, device=first.device)  # +1 where a slice begins, -1 behind it
    edges = edges.index_add(0, first, one).index_add(0, after, -one)
    return edges.cumsum(0)[:rows] > 0


def slots_in_slices(routing: Routing) -> torch.Tensor:
    """Return which picks are computed here, bool [tokens, k]. Nothing is read from the device."""
    row = routing.row_sorted_indx  # [slots]
    if row.numel() == 0:
        return row.reshape(-1, routing.n_experts_act).bool()
    computed = (row >= 0) & rows_in_slices(routing)[row.clamp(min=0).long()]
    return computed.reshape(-1, routing.n_experts_act)


def sum_picks(routing: Routing, outputs: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of each token's expert outputs, [tokens, hidden], in the outputs' dtype.

    outputs: floating [slots, hidden], one line for each row. Lines of rows in no slice may hold anything,
    NaN too: they are left out, not multiplied by zero.
    """
    computed = slots_in_slices(routing)  # [tokens, k]
    row = routing.row_sorted_indx.clamp(min=0).long()  # [slots]
    weighted = outputs * routing.gate_scal[:, None].to(outputs.dtype)  # [slots, hidden]
    picked = weighted[row].reshape(*computed.shape, outputs.shape[1])  # [tokens, k, hidden]
    return torch.where(computed[:, :, None], picked, 0).sum(dim=1)


def assignments(routing: Routing) -> torch.Tensor:
    """Return what is computed, int64 [n, 3]: token, pick, expert of each row in a slice, by slice. On the
    CPU.

    The expert is the slice's number, so the rank's local one after `remap` or `rebuild_local`.
    """
    ragged = routing.ragged_metadata
    slots = routing.col_sorted_indx.cpu().long()
    sizes = ragged.slice_sizes.cpu().clamp(min=0).tolist()
    starts = ragged.slice_offs.cpu().tolist()
    lines = []
    for expert, size in enumerate(sizes):
        slot = slots[starts[expert] : starts[expert] + size] if size else slots[:0]
        k = routing.n_experts_act
        lines.append(torch.stack([slot // k, slot % k, torch.full_like(slot, expert)], dim=1))
    return torch.cat(lines) if lines else torch.empty((0, 3), dtype=torch.int64)
