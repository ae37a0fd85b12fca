from __future__ import annotations

import pytest
import torch

from gptoss_lab.moe.equivalence import assert_equivalent, drop_padding
from gptoss_lab.moe.parallel import (
    assignments,
    rebuild_local,
    remap,
    rows_in_slices,
    slots_in_slices,
    sum_picks,
)
from gptoss_lab.moe.properties import check_ranks, make_expert_map, poisoned_sum, real_blocks
from gptoss_lab.moe.routing import rebuild, reuse, topk


def picks_of(routing) -> set[tuple[int, ...]]:
    return {tuple(line) for line in assignments(routing).tolist()}


def test_four_ranks_share_the_picks(logits):
    check_ranks(logits(5, 40), k=4, ranks=4, seed=0)


def test_the_whole_is_not_the_part(logits, device):
    """Why reuse is wrong after an expert map: two ranks would both compute everything."""
    sparse = topk(logits(4, 32), 2)
    whole = reuse(sparse, 32)
    expert_map, n_local = make_expert_map(torch.arange(32) // 16, rank=1)
    part = drop_padding(rebuild_local(sparse, expert_map.to(device), n_local))
    expected = {(token, pick, expert - 16) for token, pick, expert in picks_of(whole) if expert >= 16}
    assert picks_of(part) == expected != picks_of(whole)
    assert picks_of(remap(whole, expert_map.to(device), n_local)) == expected


def test_remap_keeps_rows_and_slots_of_the_whole(logits, device):
    whole = reuse(topk(logits(4, 32), 2), 32)
    expert_map, n_local = make_expert_map(torch.arange(32) % 2, rank=0)
    part = remap(whole, expert_map.to(device), n_local)
    assert part.col_sorted_indx is whole.col_sorted_indx
    assert part.gate_scal is whole.gate_scal
    local = [expert for expert in range(32) if expert % 2 == 0]
    ragged = part.ragged_metadata
    assert ragged.n_slices == part.n_experts == 16
    assert ragged.slice_sizes.tolist() == [whole.ragged_metadata.slice_sizes[expert].item() for expert in local]
    assert ragged.slice_offs[:16].tolist() == [whole.ragged_metadata.slice_offs[expert].item() for expert in local]


def test_without_n_local_the_slices_of_others_have_size_minus_one(logits, device):
    whole = reuse(topk(logits(4, 32), 2), 32)
    expert_map, n_local = make_expert_map(torch.arange(32) % 2, rank=0)
    all_slices = remap(whole, expert_map.to(device))
    assert all_slices.ragged_metadata.slice_sizes[16:].eq(-1).all()
    trimmed = remap(whole, expert_map.to(device), n_local)
    assert picks_of(all_slices) == picks_of(trimmed)
    assert real_blocks(all_slices) == real_blocks(trimmed)
    assert torch.equal(slots_in_slices(all_slices), slots_in_slices(trimmed))


def test_a_rank_without_experts_computes_nothing(logits, device):
    whole = reuse(topk(logits(2, 32), 2), 32)
    nobody = torch.full((32,), -1, dtype=torch.int32, device=device)
    part = remap(whole, nobody)
    assert picks_of(part) == set()
    assert not slots_in_slices(part).any()
    assert sum_picks(part, torch.full((4, 3), torch.nan, device=device)).eq(0).all()


def test_a_rank_with_all_experts_computes_everything(logits, device):
    whole = reuse(topk(logits(2, 32), 2), 32)
    part = remap(whole, torch.arange(32, dtype=torch.int32, device=device), 32)
    assert picks_of(part) == picks_of(whole)
    assert real_blocks(part) == real_blocks(whole)
    assert slots_in_slices(part).all()


def test_minus_one_does_not_mean_the_last_entry_of_the_map(logits, device):
    sparse = topk(logits(2, 32), 2)
    sparse.indx = torch.tensor([[31, -1], [-1, 4]], dtype=torch.int16, device=device)
    expert_map, n_local = make_expert_map(torch.arange(32) // 16, rank=1)
    assert picks_of(rebuild_local(sparse, expert_map.to(device), n_local)) == {(0, 0, 15)}


def test_poison_in_rows_of_others_does_not_reach_the_sum(logits, device):
    whole = reuse(topk(logits(4, 32), 2), 32)
    expert_map, n_local = make_expert_map(torch.arange(32) % 2, rank=1)
    part = remap(whole, expert_map.to(device), n_local)
    assert not poisoned_sum(part).isnan().any()
    outputs = torch.where(rows_in_slices(part), 1.0, torch.nan)[:, None]
    gates = torch.zeros(4)
    for token, pick, _ in assignments(part).tolist():
        gates[token] += whole.gate_scal[whole.row_sorted_indx[2 * token + pick]].float().cpu()
    assert torch.allclose(sum_picks(part, outputs.to(device))[:, 0].cpu(), gates)


def test_no_tokens(logits, device):
    sparse = topk(logits(0, 32), 2)
    expert_map, n_local = make_expert_map(torch.arange(32) % 2, rank=1)
    remapped = remap(reuse(sparse, 32), expert_map.to(device), n_local)
    rebuilt = drop_padding(rebuild_local(sparse, expert_map.to(device), n_local))
    for routing in (remapped, rebuilt):
        assert picks_of(routing) == set()
        assert slots_in_slices(routing).shape == (0, 2)
        assert sum_picks(routing, torch.zeros((0, 3), device=device)).shape == (0, 3)
    assert_equivalent(real_blocks(remapped), real_blocks(rebuilt))


def test_a_map_that_does_not_fit_is_refused(logits, device):
    whole = rebuild(topk(logits(1, 24), 2), 24)
    expert_map = torch.arange(24, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"shape \[24\], the routing 32 slices"):
        remap(whole, expert_map)
    with pytest.raises(ValueError, match="int64: pass expert_map.int"):
        remap(drop_padding(whole), expert_map.long())
    assert picks_of(remap(drop_padding(whole), expert_map)) == picks_of(whole)
