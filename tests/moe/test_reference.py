"""The reference against PyTorch's own functions and against sums done by hand."""

from __future__ import annotations

import math

import pytest
import torch

from gptoss_lab.moe.equivalence import assert_equivalent
from gptoss_lab.moe.parallel import assignments
from gptoss_lab.moe.properties import hard_logits
from gptoss_lab.moe.reference import choose_experts, lay_out_blocks, order_by_bits, reference
from gptoss_lab.moe.validation import validate_routing


@pytest.mark.parametrize("k", [1, 3, 6, 24])
def test_any_k_gives_torch_topk_and_softmax(logits, k):
    x = logits(5, 24, torch.float32)
    values, ids = torch.topk(x, k, dim=1)
    picks, weights = choose_experts(x.cpu(), k)
    assert torch.equal(picks, ids.cpu())
    assert torch.allclose(weights, torch.softmax(values, dim=1).cpu())
    routing = reference(x, k)
    validate_routing(routing)
    expected = {(token, pick, int(ids[token, pick])) for token in range(5) for pick in range(k)}
    assert {tuple(line) for line in assignments(routing).tolist()} == expected


def test_rows_carry_the_weight_of_their_slot(logits):
    x = logits(4, 32)
    _, weights = choose_experts(x.cpu(), 4)
    routing = reference(x, 4)
    assert torch.equal(routing.gate_scal.cpu(), weights.flatten()[routing.col_sorted_indx.cpu().long()])


def test_of_equals_the_lower_id_comes_first():
    picks, weights = choose_experts(torch.zeros((1, 40)), 4)
    assert picks.tolist() == [[0, 1, 2, 3]]
    assert weights.tolist() == [[0.25] * 4]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_order_of_bits_is_total(dtype):
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    negative_nan = torch.tensor([-1], dtype=integer).view(dtype)
    rising = torch.tensor([-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan], dtype=dtype)
    if order_by_bits(rising)[-1] < 0:  # a cast may set a NaN's sign
        rising[-1] = torch.full((), math.nan, dtype=dtype)
    keys = order_by_bits(torch.cat([negative_nan, rising]))
    assert (keys[1:] > keys[:-1]).all()


def test_blocks_of_the_example_in_triton_kernels_documentation():
    ragged = lay_out_blocks([15, 17, 0, 127], slots=159)
    assert ragged.slice_offs.tolist() == [0, 15, 32, 32, 159]
    assert ragged.block_offs(16).tolist() == [0, 1, 3, 3, 11]
    assert ragged.block_offs(128).tolist() == [0, 1, 2, 2, 3]
    blocks = [(entry >> 16, entry & 0xFFFF) for entry in ragged.block_schedule(64).tolist() if entry != -1]
    assert blocks == [(0, 0), (0, 1), (0, 3), (1, 3)]


def test_the_schedule_has_room_for_the_worst_case():
    full = lay_out_blocks([17, 1, 1, 1], slots=20)  # one slice just over a block, the others waste theirs
    assert (full.block_schedule(16) != -1).all()


def test_triton_kernels_own_layout_agrees(device):
    from triton_kernels.tensor import make_ragged_tensor_metadata_torch

    sizes = [15, 17, 0, 127, 1]
    theirs = make_ragged_tensor_metadata_torch(torch.tensor(sizes, dtype=torch.int32), 160)
    assert_equivalent(lay_out_blocks(sizes, slots=160), theirs)


def test_it_does_not_touch_its_input():
    x = hard_logits(6, 24, torch.bfloat16, seed=4)
    before = x.view(torch.int16).clone()
    reference(x, 2)
    assert torch.equal(x.view(torch.int16), before)


@pytest.mark.parametrize("k", [0, -1, 25])
def test_k_out_of_range_is_refused(k):
    with pytest.raises(ValueError, match=f"k is {k} with 24 experts"):
        reference(torch.zeros((1, 24)), k)


def test_n_rows_out_of_range_is_refused():
    with pytest.raises(ValueError, match="n_rows is 2 with 1 tokens"):
        reference(torch.zeros((1, 24)), 2, n_rows=2)
