"""Routing metadata in NumPy, a line or two each, as the lesson builds it. `reference` has the same in PyTorch."""

from __future__ import annotations

import numpy as np


def count_rows(ids: np.ndarray, n_experts: int) -> np.ndarray:
    """Count the slots that picked each expert: integer ids [tokens, k], -1 for no pick -> int32 [n_experts]."""
    return np.bincount(ids[ids >= 0], minlength=n_experts).astype(np.int32)


def sort_slots(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort the slots of ids [tokens, k] by expert, and among equals by slot; every id is an expert.

    Returns `col_sorted` (row -> slot) and its inverse `row_sorted` (slot -> row), int32 [slots] each.
    """
    col_sorted = np.argsort(ids.reshape(-1), kind="stable").astype(np.int32)  # [slots]
    row_sorted = np.empty_like(col_sorted)
    row_sorted[col_sorted] = np.arange(len(col_sorted), dtype=np.int32)
    return col_sorted, row_sorted


def schedule_blocks(sizes: np.ndarray, block_size: int, length: int) -> np.ndarray:
    """List the blocks of all experts, int32 [length]: `block << 16 | expert` in the order of the experts, then -1.

    sizes: rows of each expert, integers [experts]. An expert has as many blocks as cover its rows.
    """
    schedule = np.full(length, -1, dtype=np.int32)
    entries = [
        block << 16 | expert for expert, size in enumerate(sizes) for block in range(-(-int(size) // block_size))
    ]
    schedule[: len(entries)] = entries
    return schedule


def read_bits(words: np.ndarray, n_experts: int) -> list[list[int]]:
    """Read a bitmatrix: uint32 words [tokens, n_words] -> for each token the experts whose bit is set, ascending."""
    return [[e for e in range(n_experts) if int(row[e // 32]) >> (e % 32) & 1] for row in words]
