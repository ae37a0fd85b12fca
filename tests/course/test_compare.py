"""The comparison names the first difference, and fails on what it cannot compare."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gptoss_lab.course.check import Mismatch, expect_equal
from gptoss_lab.course.compare import snapshot
from gptoss_lab.course.describe import attributes, show, show_call

NAN = float("nan")


@dataclass
class Point:
    x: int
    where: list


@dataclass
class Derived:
    """Like the `SparseMatrix` of triton_kernels: one attribute is no field."""

    values: torch.Tensor

    def __post_init__(self):
        self.counts = [torch.zeros(2), 1]

    @cached_property
    def total(self):
        return self.values.sum()


class Record:
    def __init__(self, values):
        self.values = values


class Stream:
    """It has a method, so it may change as it is used."""

    def __init__(self):
        self.produced = 0

    def take(self):
        self.produced += 1


DIFFERENT = {
    "number": (3, 5, "the result is 3, expected 5"),
    "int and float": (3, 3.0, "the int 3, expected the float 3.0"),
    "bool and int": (True, 1, "the bool True, expected the int 1"),
    "text": ("a", "b", "'a', expected 'b'"),
    "None": (None, 5, "the result is None, expected the int 5"),
    "None against a tuple": (None, ("norm", 0), "the result is None, expected ('norm', 0)"),
    "a tuple against None": (("norm", 0), None, "the result is ('norm', 0), expected None"),
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


SAME_KIND = ("number", "text", "length", "missing key", "then shape", "then values", "a function")
OTHER_KIND = {
    "int and float": ("int", "float"),
    "None": ("None", "int"),
    "not None": ("int", "None"),
    "list and tuple": ("list", "tuple"),
    "array and tensor": ("array", "tensor"),
    "dtype first": ("torch.bfloat16", "torch.float32"),
    "array dtype": ("float64", "float32"),
}


@pytest.mark.parametrize("label", [*SAME_KIND, *OTHER_KIND])
def test_a_mismatch_tells_whether_the_kinds_differ(label):
    actual, expected, _ = DIFFERENT[label]
    with pytest.raises(Mismatch) as found:
        expect_equal([actual], [expected])
    assert found.value.kinds == OTHER_KIND.get(label)


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


DATA = {
    "a dataclass with more than fields": lambda: Derived(torch.ones(2)),
    "a namespace": lambda: SimpleNamespace(counts=[torch.zeros(2), 1]),
    "an object in a list": lambda: Record([Derived(torch.ones(2))]),
}
CHANGES = {
    "in place": lambda counts, owner: counts[0].fill_(1),
    "another value": lambda counts, owner: setattr(owner, "counts", [torch.zeros(2), 2]),
    "one more": lambda counts, owner: setattr(owner, "more", 1),
    "one less": lambda counts, owner: delattr(owner, "counts"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", DATA)
def test_attributes_are_kept_and_compared(kind, change):
    value = DATA[kind]()
    kept = snapshot(value)
    expect_equal(value, kept, bitwise=True)
    owner = value.values[0] if isinstance(value, Record) else value
    CHANGES[change](owner.counts, owner)
    with pytest.raises(Mismatch, match=r"(\.|has \.|lacks \.)(counts|more)"):
        expect_equal(value, kept, bitwise=True)


def test_what_is_derived_is_no_difference():
    value = Derived(torch.ones(2))
    kept = snapshot(value)
    assert value.total == 2 and "total" in vars(value)
    expect_equal(value, kept)


def test_an_object_with_methods_is_no_data():
    stream = Stream()
    assert snapshot(stream) is stream and attributes(stream) is None
    for value in (len, Stream, torch, torch.nn.Linear(1, 1), 3, [1], iter([1])):
        assert attributes(value) is None


CALLS = {
    "f(3, 'a', [1, (2,)])": ((3, "a", [1, (2,)]), {}),
    "f(tensor([1, 2]), k=2)": ((torch.tensor([1, 2]),), {"k": 2}),
    "f(array([[1, 0]], dtype=int16))": ((np.array([[1, 0]], dtype=np.int16),), {}),
    "f({'a': tensor([1.])})": (({"a": torch.ones(1)},), {}),
    "f(tensor([3.0, 2.9999998, nan]))": ((torch.tensor([3.0, 2.9999998, NAN]),), {}),
    "f(tensor([-0.0, 0.100097656], dtype=torch.bfloat16))": ((torch.tensor([-0.0, 0.1], dtype=torch.bfloat16),), {}),
    "f(tensor([[True]]), array([2.5]))": ((torch.tensor([[True]]), np.array([2.5])), {}),
    "f(tensor(2, dtype=torch.uint8))": ((torch.tensor(2, dtype=torch.uint8),), {}),
    "f(tensor([]))": ((torch.ones(0),), {}),
}


@pytest.mark.parametrize("text", CALLS)
def test_a_call_with_small_inputs_is_shown_as_one_would_type_it(text):
    args, kwargs = CALLS[text]
    assert show_call("f", dict(enumerate(args)) | kwargs, len(args)) == text


OTHERS = [
    torch.ones(17),
    torch.ones(2, device="meta"),
    torch.ones(2).to(torch.float8_e5m2),
    torch.ones(2, dtype=torch.complex64).conj(),
    torch.eye(2).to_sparse(),
    torch.nn.Parameter(torch.ones(2)),
    len,
    object(),
    [iter([])],
    "a" * 500,
]


@pytest.mark.parametrize("value", OTHERS)
def test_a_call_with_other_inputs_is_not_shown(value):
    assert show_call("f", {"value": value}, 1) == ""
    assert show_call("f", {}, 0) == ""


def test_values_are_shown_short_and_without_addresses():
    assert len(show(list(range(1000)))) <= 80
    assert "0x7" not in show([object()])
    assert show({3, 1, 2}) == "[1, 2, 3]"
