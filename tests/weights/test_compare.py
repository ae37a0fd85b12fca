"""Comparison by bytes, against safetensors and NumPy."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from gptoss_lab.course.lab import CAPITALS
from gptoss_lab.weights.compare import differing, raw_bytes, same_bytes, shares_memory, source_of

NAN = float("nan")


@pytest.fixture(scope="module")
def weights():
    return load_file(CAPITALS / "model-00001-of-00003.safetensors")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[1.0, -0.0, NAN], [2.0, 3.0, 4.0]]),
        torch.arange(6).to(torch.bfloat16),
        torch.tensor([True, False, True]),
        torch.tensor(7, dtype=torch.int64),
        torch.arange(8, dtype=torch.uint8).view(torch.float8_e4m3fn),
        torch.zeros(0, 3),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_raw_bytes_are_what_safetensors_stores(tensor):
    stored = save({"t": tensor})
    header = int.from_bytes(stored[:8], "little")
    start, stop = json.loads(stored[8 : 8 + header])["t"]["data_offsets"]
    assert raw_bytes(tensor) == stored[8 + header + start : 8 + header + stop]


def test_raw_bytes_are_in_the_order_of_the_shape_not_of_the_memory():
    tensor = torch.arange(6.0, requires_grad=True).reshape(2, 3).t()
    assert raw_bytes(tensor) == tensor.detach().numpy().tobytes(order="C")
    assert raw_bytes(tensor) != raw_bytes(tensor.t())


def test_same_bytes_looks_at_bits():
    nan = torch.tensor([NAN])
    other_nan = (nan.view(torch.int32) + 1).view(torch.float32)
    assert same_bytes(nan, nan.clone())
    assert not same_bytes(nan, other_nan)
    assert not same_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_same_bytes_looks_at_the_form_too():
    tensor = torch.arange(4, dtype=torch.int16)
    assert not same_bytes(tensor, tensor.view(torch.bfloat16))
    assert not same_bytes(tensor, tensor.reshape(2, 2))


def test_differing_names_a_flipped_bit_and_what_one_side_lacks(weights):
    assert differing(weights, {name: tensor.clone() for name, tensor in weights.items()}) == []
    first, second, *_ = weights
    changed = dict(weights)
    changed[second] = weights[second].clone()
    changed[second].view(torch.uint8).view(-1)[-1] ^= 1
    changed["another"] = changed.pop(first)
    assert differing(weights, changed) == sorted([first, second, "another"])
    assert differing(changed, weights) == sorted([first, second, "another"])
    assert differing(weights, {}) == sorted(weights)


two_letters = st.binary(max_size=24).map(lambda data: bytes(byte % 2 for byte in data))  # so that much repeats


@given(st.lists(two_letters, min_size=1, max_size=4), st.data(), st.integers(1, 16), two_letters)
def test_source_of_is_the_first_place_of_the_probe(owners, data, probe, tail):
    owner = data.draw(st.sampled_from(owners))
    wrong = owner[data.draw(st.integers(0, len(owner))) :][:probe] + tail
    needle = wrong[:probe]
    places = [(str(i), owner.index(needle)) for i, owner in enumerate(owners) if needle in owner]
    originals = {str(i): torch.tensor(list(owner), dtype=torch.uint8) for i, owner in enumerate(owners)}
    found = source_of(torch.tensor(list(wrong), dtype=torch.uint8), originals, probe)
    assert found == (places[0] if places else None)


def test_source_of_crosses_dtypes_and_ends_within_one_tensor(weights):
    blocks = next(tensor for name, tensor in weights.items() if name.endswith("down_proj_blocks"))
    # From an odd byte on, so that no element of the new tensor is one of the old.
    stolen = torch.frombuffer(bytearray(raw_bytes(blocks)[101:165]), dtype=torch.bfloat16)
    name, offset = source_of(stolen, weights)
    assert raw_bytes(weights[name])[offset : offset + 32] == raw_bytes(stolen)[:32]
    halves = torch.cat([torch.ones(16), torch.zeros(16)])
    assert source_of(halves[8:24], {"left": halves[:16], "right": halves[16:]}, probe=64) is None


@given(st.tuples(*[st.integers(0, 12)] * 4), st.integers(1, 3), st.integers(1, 3))
def test_shares_memory_compares_spans_as_numpy_does(ends, step_a, step_b):
    buffer = torch.arange(12.0)
    a, b = buffer[min(ends[:2]) : max(ends[:2]) : step_a], buffer[min(ends[2:]) : max(ends[2:]) : step_b]
    assert shares_memory(a, b) == np.may_share_memory(a.numpy(), b.numpy())


def test_shares_memory_takes_a_transposed_view_and_a_scalar():
    matrix = torch.zeros(4, 6)
    column, last = matrix[:, 5], matrix[3, 5]
    assert shares_memory(column, last)
    assert shares_memory(matrix.t(), last)
    assert not shares_memory(matrix[:, :5][:3], last)


def test_tensors_without_elements_share_nothing():
    # All of them have the address 0, whatever their shape.
    assert not shares_memory(torch.zeros(3, 0), torch.zeros(3, 0))


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on a GPU, at an address that a host tensor has too."""

    device = torch.device("cuda")


def test_equal_addresses_on_two_devices_are_two_places():
    here = torch.ones(4)
    there = here.as_subclass(Elsewhere)
    assert there.data_ptr() == here.data_ptr()
    assert not shares_memory(here, there)
    assert shares_memory(there, there)
