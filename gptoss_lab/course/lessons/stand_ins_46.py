"""What the checkers of `46__what_parity_misses` hand to a learner: layouts, faults, and things to compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gptoss_lab.moe.by_hand import count_rows, schedule_blocks, sort_slots

Arrays = dict[str, np.ndarray]


def lay_out(ids: np.ndarray, weights: np.ndarray, slices: int) -> Arrays:
    """A right layout, as `as_arrays` gives it."""
    col_sorted, row_sorted = sort_slots(ids)
    sizes = count_rows(ids, slices)
    return {
        "gate_scal": weights.reshape(-1)[col_sorted],
        "col_sorted_indx": col_sorted,
        "row_sorted_indx": row_sorted,
        "slice_sizes": sizes,
        "slice_offs": np.cumsum([0, *sizes]).astype(np.int32),
        "schedule": schedule_blocks(sizes, 16, len(col_sorted)),
    }


def picks(tokens: int, experts: int, seed: int, popular: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids [tokens, 4] of the first `experts` experts, distinct in a row, and weights; `popular` is in each row."""
    random = np.random.default_rng(seed)
    ids = np.stack([random.permutation(experts)[:4] for _ in range(tokens)]).astype(np.int16)
    ids[:, 0] = np.where((ids == popular).any(axis=1), ids[:, 0], popular)
    weights = random.random((tokens, 4), dtype=np.float32)
    return ids, weights / weights.sum(axis=1, keepdims=True)


def shifted_offsets(arrays: Arrays) -> Arrays:
    return {"slice_offs": np.append(arrays["slice_offs"][1:], arrays["slice_offs"][-1])}


def exchanged_sizes(arrays: Arrays) -> Arrays:
    """The first two different sizes of neighbours exchanged, and the offsets made to fit."""
    sizes = arrays["slice_sizes"].copy()
    e = int(np.flatnonzero(sizes[:-1] != sizes[1:])[0])
    sizes[[e, e + 1]] = sizes[[e + 1, e]]
    return {"slice_sizes": sizes, "slice_offs": np.cumsum([0, *sizes]).astype(np.int32)}


def exchanged(arrays: Arrays, row: int) -> Arrays:
    """A row and the one before it exchanged, consistently in all three arrays."""
    order = np.arange(len(arrays["col_sorted_indx"]))
    order[[row - 1, row]] = order[[row, row - 1]]
    col_sorted = arrays["col_sorted_indx"][order]
    row_sorted = np.empty_like(col_sorted)
    row_sorted[col_sorted] = np.arange(len(col_sorted), dtype=np.int32)
    return {"col_sorted_indx": col_sorted, "row_sorted_indx": row_sorted, "gate_scal": arrays["gate_scal"][order]}


def exchanged_rows(arrays: Arrays) -> Arrays:
    """The first two rows of expert 0 exchanged."""
    return exchanged(arrays, 1)


def exchanged_experts(arrays: Arrays) -> Arrays:
    """The last row of expert 0 and the first of the next one exchanged."""
    return exchanged(arrays, int(arrays["slice_sizes"][0]))


def slot_twice(arrays: Arrays) -> Arrays:
    return {"col_sorted_indx": np.append(arrays["col_sorted_indx"][:-1], arrays["col_sorted_indx"][-2])}


def weight_of_the_last_row(arrays: Arrays) -> Arrays:
    return {"gate_scal": np.append(arrays["gate_scal"][:-1], np.float32(0.5) * arrays["gate_scal"][-1])}


def first_block_again(arrays: Arrays) -> Arrays:
    """Each entry names block 0 of its expert."""
    return {"schedule": np.where(arrays["schedule"] < 0, -1, arrays["schedule"] & 0xFFFF)}


def last_block_lost(arrays: Arrays) -> Arrays:
    schedule = arrays["schedule"].copy()
    schedule[np.flatnonzero(schedule >= 0)[-1]] = -1
    return {"schedule": schedule}


@dataclass(frozen=True, eq=False)
class Ragged:
    """A part of `Part`."""

    sizes: torch.Tensor
    block_sizes: Any


@dataclass(frozen=True, eq=False)
class Part:
    """What the checker compares, shaped like a `Routing`."""

    gate_scal: torch.Tensor | None
    ragged: Ragged
    n_experts: int


def part(gate: Any = (0.5, 0.25), sizes: Any = (1, 0, 2), block_sizes: Any = (16, 32), n_experts: int = 3) -> Part:
    """A `Part` with fresh tensors; tuples of numbers for the tensors, or what should stand in their place."""
    gate = torch.tensor(gate) if isinstance(gate, tuple) else gate
    return Part(gate, Ragged(torch.tensor(sizes, dtype=torch.int32), block_sizes), n_experts)


def block_sizes() -> list[int]:
    return [16, 32]
