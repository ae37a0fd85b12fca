"""The comparison names the first difference, and fails on what it cannot compare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gptoss_lab.course.check import Mismatch, expect_equal
from gptoss_lab.course.compare import snapshot
from gptoss_lab.course.describe import show

NAN = float("nan")


@dataclass
class Point:
    x: int
    where: list


DIFFERENT = {
    "number": (3, 5, "the result is 3, expected 5"),
    "int and float": (3, 3.0, "the int 3, expected the float 3.0"),
    "bool and int": (True, 1, "the bool True, expected the int 1"),
    "text": ("a", "b", "'a', expected 'b'"),
    "None": (None, 5, "does every way through the function `return`?"),
    "not None": (5, None, "the int 5, expected None"),
    "None against a tensor": (None, torch.ones(2), "None, expected a tensor of float32 [2]"),
    "list and tuple": ([1], (1,), "a list of 1 items, expected a tuple"),
    "length": ([1, 2], [1], "has 2 items, expected 1"),
    "item": ([1, [2, 3]], [1, [2, 4]], "the result[1][1] is 3, expected 4"),
    "missing key": ({"a": 1}, {"a": 1, "b": 2}, "lacks ['b']"),
    "extra key": ({"a": 1, "b": 2}, {"a": 1}, "has ['b'], which should not be there"),
    "value under a key": ({"a": [1]}, {"a": [2]}, "the result['a'][0] is 1, expected 2"),
    "set": ({1, 2}, {2, 3}, "lacks [3]"),
    "dataclass": (Point(1, [2]), Point(1, [3]), "the result.where[0] is 2, expected 3"),
    "dtype first": (torch.ones(2, dtype=torch.bfloat16), torch.zeros(3), "dtype torch.bfloat16"),
    "then shape": (torch.ones(2), torch.zeros(3), "shape [2], expected [3]"),
    "then values": (
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([[1, 2], [5, 6]]),
        "2 of 4 values differ",
    ),
    "array dtype": (np.ones(2), np.ones(2, np.float32), "dtype float64, expected float32"),
    "array and tensor": (np.ones(2), torch.ones(2), "an array of float64"),
    "NaN": (torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0]), "first at [1]: nan, expected 2.0"),
    "8-bit floats": (
        torch.tensor([1.0]).to(torch.float8_e4m3fn),
        torch.tensor([2.0]).to(torch.float8_e4m3fn),
        "1.0, expected 2.0",
    ),
    "path": (Path("a"), Path("b"), "expected"),
    "dtype objects": (torch.float16, torch.float32, "torch.float16, expected torch.float32"),
    "a function": (len, len, "cannot be compared"),
    "an unknown type": (object(), object(), "cannot be compared"),
    "objects in a list": ([iter([])], [iter([])], "cannot be compared"),
    "meta tensors": (torch.ones(1, device="meta"), torch.ones(1, device="meta"), "not a plain dense tensor"),
    "arrays of objects": (np.array([None]), np.array([None]), "Python objects"),
    "scalars": (torch.tensor(1), torch.tensor(2), "1 of 1 values differ, 1, expected 2"),
}


@pytest.mark.parametrize("label", DIFFERENT)
def test_a_difference_is_named(label):
    actual, expected, message = DIFFERENT[label]
    with pytest.raises(Mismatch) as found:
        expect_equal(actual, expected)
    assert message in found.value.message


@pytest.mark.parametrize("label", [key for key in DIFFERENT if "compared" not in DIFFERENT[key][2]])
def test_a_copy_of_itself_is_equal(label):
    expected = DIFFERENT[label][1]
    if label not in ("meta tensors", "arrays of objects"):
        expect_equal(snapshot(expected), expected)


def test_nan_equals_nan_unless_told_otherwise():
    values = torch.tensor([NAN, 1.0])
    expect_equal(values.clone(), values)
    expect_equal(NAN, NAN)
    expect_equal({"a": np.array([NAN])}, {"a": np.array([NAN])})
    for value in (values, NAN):
        with pytest.raises(Mismatch):
            expect_equal(value, value, nan_equal=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_bitwise_tells_zeros_and_nans_apart(dtype):
    zeros, signed = torch.zeros(2, dtype=dtype), torch.tensor([0.0, -0.0], dtype=dtype)
    expect_equal(signed, zeros)
    with pytest.raises(Mismatch, match="first at \\[1\\]: -0.0, expected 0.0"):
        expect_equal(signed, zeros, bitwise=True)
    nan = torch.tensor([NAN, NAN], dtype=dtype)
    expect_equal(nan.clone(), nan, bitwise=True)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    other = nan.view(bits).bitwise_xor(1).view(dtype)
    expect_equal(other, nan)
    with pytest.raises(Mismatch, match="2 of 2"):
        expect_equal(other, nan, bitwise=True)


def test_bitwise_reads_the_stored_bits_of_types_that_numpy_lacks():
    # Widened to float32, which makes a signalling NaN a quiet one, these two could not be told apart.
    one, other = (torch.tensor([byte], dtype=torch.uint8).view(torch.float8_e5m2) for byte in (0x7D, 0x7F))
    expect_equal(one, other)
    with pytest.raises(Mismatch):
        expect_equal(one, other, bitwise=True)


def test_bitwise_holds_for_numbers_and_arrays_too():
    for one, other in ((-0.0, 0.0), (np.array([-0.0]), np.array([0.0]))):
        expect_equal(one, other)
        with pytest.raises(Mismatch):
            expect_equal(one, other, bitwise=True)


def test_tolerances_loosen_floats_only():
    expect_equal(torch.tensor([1.001]), torch.tensor([1.0]), rtol=0.01)
    with pytest.raises(Mismatch):
        expect_equal(torch.tensor([1.1]), torch.tensor([1.0]), rtol=0.01)
    with pytest.raises(Mismatch):
        expect_equal(torch.tensor([101]), torch.tensor([100]), rtol=0.1)


def test_strides_do_not_matter():
    values = torch.arange(6.0).reshape(2, 3)
    expect_equal(values.t(), values.t().contiguous(), bitwise=True)


def test_the_path_starts_with_the_name_given():
    with pytest.raises(Mismatch, match=r"^the names\[0\] is 'a'"):
        expect_equal(["a"], ["b"], "the names")


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(nested)
def test_every_nest_equals_its_snapshot(value):
    expect_equal(snapshot(value), value, bitwise=True)


@given(nested)
def test_one_more_level_is_a_difference(value):
    with pytest.raises(Mismatch):
        expect_equal([value], value)


def test_a_snapshot_shares_no_memory():
    value = {"a": [torch.zeros(2)], "b": Point(1, [np.zeros(2)])}
    kept = snapshot(value)
    value["a"][0].fill_(1)
    value["b"].where[0][:] = 1
    value["a"].append(2)
    expect_equal(kept, {"a": [torch.zeros(2)], "b": Point(1, [np.zeros(2)])})


def test_values_are_shown_short_and_without_addresses():
    assert len(show(list(range(1000)))) <= 80
    assert "0x7" not in show([object()])
    assert show({3, 1, 2}) == "[1, 2, 3]"
