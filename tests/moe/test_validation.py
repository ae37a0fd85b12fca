from __future__ import annotations

import dataclasses

import pytest
import torch

from gptoss_lab.moe.reference import reference
from gptoss_lab.moe.routing import topk
from gptoss_lab.moe.validation import LARGEST_SLICE, validate, validate_expert_map, validate_routing


def test_ids_of_topk_and_empty_slots_pass(logits, device):
    validate(topk(logits(2, 32), 4), 32)
    validate(torch.tensor([[-1, 3], [-1, -1], [31, 0]], device=device), 32)
    validate(torch.empty((0, 4), dtype=torch.int16, device=device), 32)


@pytest.mark.parametrize("wrong", [32, 2**31 - 1, -2, -(2**31)])
def test_ids_out_of_range_are_refused(device, wrong):
    ids = torch.tensor([[0, 1], [5, wrong]], device=device)
    with pytest.raises(ValueError, match=rf"ids\[1, 1\] is {wrong} with 32 experts: pass 0 to 31"):
        validate(ids, 32)


def test_an_id_twice_in_a_row_is_refused(device):
    with pytest.raises(ValueError, match=r"ids\[1\] names expert 7 twice"):
        validate(torch.tensor([[1, 2, 3], [7, -1, 7]], device=device), 32)


def test_what_are_no_ids_is_refused(device):
    with pytest.raises(ValueError, match="float32"):
        validate(torch.zeros((1, 2), device=device), 32)
    with pytest.raises(ValueError, match=r"shape \[2\]"):
        validate(torch.zeros(2, dtype=torch.int32, device=device), 32)


@pytest.mark.parametrize("entries", [[0, -1, 2], [1, 0], [0, 0], [0, -1], [-2, 0, 1]])
def test_a_map_that_does_not_number_its_experts_is_refused(entries):
    with pytest.raises(ValueError, match="numbers the local experts"):
        validate_expert_map(torch.tensor(entries, dtype=torch.int32), 2)


def test_a_map_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="float32"):
        validate_expert_map(torch.zeros(2), 2)
    validate_expert_map(torch.tensor([-1, 0, -1, 1], dtype=torch.int32), 2)


def swap(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor[1:2], tensor[:1], tensor[2:]])


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("row_sorted_indx", swap, "not the inverse"),
        ("col_sorted_indx", lambda t: torch.cat([t[:1] * 0 - 1, t[1:]]), "do not come first"),
        ("row_sorted_indx", lambda t: torch.cat([t[:-1], t[-1:] * 0 - 1]), "not the inverse"),
    ],
)
def test_rows_and_slots_that_contradict_are_refused(logits, field, change, message):
    routing = reference(logits(3, 32), 2)
    validate_routing(routing)
    with pytest.raises(ValueError, match=message):
        validate_routing(dataclasses.replace(routing, **{field: change(getattr(routing, field))}))


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("slice_sizes", lambda t: t + 1, "slices hold 38 rows, but 6"),
        ("slice_sizes", lambda t: t.flip(0), "not the running sums"),
        ("slice_offs", lambda t: t + 1, "not the running sums"),
    ],
)
def test_slices_that_contradict_are_refused(logits, field, change, message):
    routing = reference(logits(3, 32), 2)
    ragged = routing.ragged_metadata
    broken = dataclasses.replace(ragged, **{field: change(getattr(ragged, field))})
    with pytest.raises(ValueError, match=message):
        validate_routing(dataclasses.replace(routing, ragged_metadata=broken))


def test_a_slice_too_long_for_the_packed_schedule_is_refused(logits):
    routing = reference(logits(1, 1), 1)
    rows = torch.arange(LARGEST_SLICE + 1, dtype=torch.int32)
    sizes = torch.tensor([LARGEST_SLICE + 1], dtype=torch.int32)
    ragged = dataclasses.replace(routing.ragged_metadata, slice_sizes=sizes)
    long = dataclasses.replace(routing, col_sorted_indx=rows, row_sorted_indx=rows, ragged_metadata=ragged)
    with pytest.raises(ValueError, match="524289 rows: the schedule can number 524288"):
        validate_routing(long)
    last_block = LARGEST_SLICE // 16
    assert torch.tensor(last_block << 16).int().item() < 0 <= (last_block - 1) << 16 < 2**31
