"""Checks that read from the device, for checkers, tests and the command line. The hot path calls none of
them."""

from __future__ import annotations

from typing import Any

import torch

from gptoss_lab.moe.routing import Routing

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
LARGEST_SLICE = 1 << 19  # rows; with one more, block 32768 of 16 rows makes a packed schedule entry negative


def validate(ids: Any, n_experts: int) -> None:
    """Raise ValueError for ids that `rebuild_from` or `SparseMatrix` would turn into wrong writes or lost
    picks.

    ids: integers [tokens, k], or a `SparseMatrix` with such `indx`. Allowed are -1, which means no expert,
    and 0 to n_experts - 1, each at most once in a row.
    """
    ids = getattr(ids, "indx", ids)
    if ids.dtype not in INTEGERS or ids.ndim != 2:
        raise ValueError(f"ids are {ids.dtype} of shape {list(ids.shape)}: pass integers [tokens, k]")
    ids = ids.detach().cpu().long()
    wrong = ((ids < -1) | (ids >= n_experts)).nonzero()
    if len(wrong):
        token, pick = wrong[0].tolist()
        raise ValueError(
            f"ids[{token}, {pick}] is {ids[token, pick].item()} with {n_experts} experts: "
            f"pass 0 to {n_experts - 1}, or -1 for no expert"
        )
    ordered = ids.sort(dim=1).values
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).nonzero()
    if len(twice):
        token, place = twice[0].tolist()
        raise ValueError(
            f"ids[{token}] names expert {ordered[token, place].item()} twice: its bit is set once and a pick "
            "is lost; pass distinct ids"
        )


def validate_expert_map(expert_map: torch.Tensor, n_local: int) -> None:
    """Raise ValueError unless the map numbers n_local experts 0, 1, ... in ascending order and the others -1.

    expert_map: integers [experts]. `remap` moves slices together in the order of the experts and takes
    their new numbers from the map, so that another order would give slices and schedule different numbers.
    """
    if expert_map.dtype not in INTEGERS or expert_map.ndim != 1:
        raise ValueError(f"expert_map is {expert_map.dtype} of shape {list(expert_map.shape)}: pass int32 [experts]")
    entries = expert_map.detach().cpu().tolist()
    local = [entry for entry in entries if entry != -1]
    if local != list(range(n_local)):
        raise ValueError(f"expert_map numbers the local experts {local}: pass 0 to {n_local - 1} in this order")


def validate_routing(routing: Routing) -> None:
    """Raise ValueError where a whole `Routing` (not a remapped one) contradicts itself.

    Rows and slots must be inverse to each other, slices must cover the rows that have a slot, offsets must
    be the sums of the sizes, and no slice may have more than 524,288 rows.
    """
    slot_of_row = routing.col_sorted_indx.cpu().long()
    row_of_slot = routing.row_sorted_indx.cpu().long()
    sizes = routing.ragged_metadata.slice_sizes.cpu().long()
    rows = int((slot_of_row >= 0).sum())
    if bool((slot_of_row[rows:] != -1).any()) or bool((row_of_slot >= rows).any()):
        raise ValueError(f"rows with a slot do not come first: {rows} of {slot_of_row.numel()} have one")
    if not torch.equal(row_of_slot[slot_of_row[:rows]], torch.arange(rows)):
        raise ValueError("row_sorted_indx is not the inverse of col_sorted_indx")
    if int((row_of_slot >= 0).sum()) != rows:
        raise ValueError(f"{int((row_of_slot >= 0).sum())} slots have a row, but {rows} rows a slot")
    if int(sizes.sum()) != rows or bool((sizes < 0).any()):
        raise ValueError(f"slices hold {int(sizes.sum())} rows, but {rows} rows have a slot")
    if int(sizes.max()) > LARGEST_SLICE:
        raise ValueError(f"a slice has {int(sizes.max())} rows: the schedule can number {LARGEST_SLICE}")
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    if not torch.equal(routing.ragged_metadata.slice_offs.cpu().long(), offsets):
        raise ValueError("slice_offs are not the running sums of slice_sizes")
