"""The NumPy functions of the first routing lesson against the reference, and against triton_kernels itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gptoss_lab.moe.by_hand import count_rows, read_bits, schedule_blocks, sort_slots
from gptoss_lab.moe.reference import choose_experts, reference
from gptoss_lab.moe.routing import reuse, topk


def expect_same_metadata(ids: np.ndarray, made) -> None:
    """Hold every list that can be computed from ids against a routing."""
    ragged = made.ragged_metadata
    col_sorted, row_sorted = sort_slots(ids)
    sizes = count_rows(ids, made.n_experts)
    pairs = [
        (col_sorted, made.col_sorted_indx),
        (row_sorted, made.row_sorted_indx),
        (sizes, ragged.slice_sizes),
    ]
    for block_size, schedule in zip(ragged.block_sizes(), ragged.block_schedule_data, strict=True):
        pairs.append((schedule_blocks(sizes, block_size, schedule.shape[0]), schedule))
    for ours, theirs in pairs:
        assert ours.dtype == np.int32
        assert np.array_equal(ours, theirs.cpu().numpy())


@pytest.mark.parametrize(
    ("tokens", "experts", "k"), [(0, 32, 4), (1, 32, 4), (33, 32, 4), (100, 5, 3), (40, 24, 6), (9, 128, 8)]
)
def test_the_reference_agrees(logits, tokens, experts, k):
    x = logits(tokens, experts).cpu()
    ids = choose_experts(x, k)[0].numpy()
    expect_same_metadata(ids, reference(x, k))


@pytest.mark.parametrize(("tokens", "experts"), [(1, 32), (5, 24), (20, 40)])
def test_triton_kernels_agree(logits, tokens, experts):
    sparse = topk(logits(tokens, experts), 4)
    ids = sparse.indx.cpu().numpy()
    expect_same_metadata(ids, reuse(sparse, experts))
    words = sparse.mask.storage.data.cpu().numpy().view(np.uint32)
    assert read_bits(words, experts) == [sorted(row) for row in ids.tolist()]


def test_triton_kernels_agree_when_all_tokens_pick_the_same_experts(device):
    x = torch.zeros((34, 32), dtype=torch.bfloat16, device=device)  # of equals the lower id comes first
    sparse = topk(x, 2)
    assert count_rows(sparse.indx.cpu().numpy(), 32).tolist() == [34, 34] + [0] * 30
    expect_same_metadata(sparse.indx.cpu().numpy(), reuse(sparse, 32))


def test_no_pick_is_not_counted():
    assert count_rows(np.array([[-1, 2], [2, -1]]), 4).tolist() == [0, 0, 2, 0]


def test_slots_and_rows_are_inverse_and_stable():
    ids = np.random.default_rng(0).integers(0, 3, (50, 4))
    col_sorted, row_sorted = sort_slots(ids)
    assert np.array_equal(col_sorted[row_sorted], np.arange(200))
    keys = ids.reshape(-1)[col_sorted] * 200 + col_sorted
    assert (np.diff(keys) > 0).all()


def test_every_row_is_in_one_block():
    sizes = np.array([0, 1, 15, 16, 17, 64, 129])
    for block_size in (16, 32, 64, 128):
        covered = [
            (entry & 0xFFFF, row)
            for entry in schedule_blocks(sizes, block_size, 40)
            if entry >= 0
            for row in range(
                (entry >> 16) * block_size, min((entry >> 16) * block_size + block_size, sizes[entry & 0xFFFF])
            )
        ]
        assert covered == [(expert, row) for expert, size in enumerate(sizes) for row in range(size)]


def test_bits_of_all_words_are_read():
    words = np.array([[1 << 31, 1], [0, 0]], dtype=np.uint32)
    assert read_bits(words, 64) == [[31, 32], []]
    assert read_bits(words, 32) == [[31], []]
