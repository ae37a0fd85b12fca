from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from gptoss_lab.moe.equivalence import assert_equivalent
from gptoss_lab.moe.reference import reference
from gptoss_lab.moe.routing import Routing


@dataclasses.dataclass
class Holder:
    leaf: object


def different(actual: object, expected: object) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_equivalent(actual, expected)
    return str(caught.value)


@pytest.fixture
def routing(logits) -> Routing:
    return reference(logits(3, 32), 2)


def leaves(routing: Routing) -> list[tuple[str, ...]]:
    ragged = [field.name for field in dataclasses.fields(routing.ragged_metadata)]
    plain = [field.name for field in dataclasses.fields(routing) if field.name != "ragged_metadata"]
    return [(name,) for name in plain] + [("ragged_metadata", name) for name in ragged]


def replace_leaf(value, path: tuple[str, ...], change):
    name, *rest = path
    inner = getattr(value, name)
    return dataclasses.replace(value, **{name: replace_leaf(inner, tuple(rest), change) if rest else change(inner)})


def add_one(value):
    return 1 if value is None else value + 1


def test_a_routing_equals_itself_and_a_copy(routing):
    assert_equivalent(routing, routing)
    assert_equivalent(routing, replace_leaf(routing, ("gate_scal",), torch.clone))


def test_every_leaf_counts_and_is_named(routing):
    for path in leaves(routing):
        assert ".".join(path) in different(replace_leaf(routing, path, add_one), routing)


def test_one_entry_of_a_tensor_is_enough(routing):
    def change_last(tensor):
        changed = tensor.clone()
        changed.view(-1)[-1] += 1
        return changed

    for path in leaves(routing):
        leaf = functools.reduce(getattr, path, routing)
        if torch.is_tensor(leaf):
            message = different(replace_leaf(routing, path, change_last), routing)
            assert f"and 1 of {leaf.numel()} entries differ" in message


def test_what_cannot_be_compared_fails():
    def block_sizes():
        return [16, 32]

    assert "a function cannot be compared" in different(Holder(block_sizes), Holder(block_sizes))
    assert "a object cannot be compared" in different([same := object()], [same])
    assert "a type cannot be compared" in different(Holder, Holder)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (None, torch.ones(1), "leaf: NoneType against Tensor"),
        (torch.ones(1), None, "leaf: Tensor against NoneType"),
        (torch.ones(2), torch.ones(2).bfloat16(), "leaf: dtype torch.float32 against torch.bfloat16"),
        (torch.ones(2), torch.ones(1, 2), r"leaf: shape torch.Size"),
        (
            torch.tensor([1, 2, 9]),
            torch.tensor([1, 3, 3]),
            r"leaf[1]: 2 against 3, and 2 of 3 entries differ",
        ),
        ([1, 2], [1], "leaf: 2 items against 1"),
        ([1, (2, 3)], [1, (2, 4)], "leaf[1][1]: 3 against 4"),
        ({"a": 1}, {"b": 1}, "leaf: keys ['a'] against ['b']"),
        ({"a": 1}, {"a": 2}, "leaf['a']: 1 against 2"),
        (1, True, "leaf: int against bool"),
        (1.0, 1, "leaf: float against int"),
        ("x", "y", "leaf: 'x' against 'y'"),
        ([1], (1,), "leaf: list against tuple"),
    ],
)
def test_differences_are_named(actual, expected, message):
    assert message in different(Holder(actual), Holder(expected))


def test_equal_leaves_pass():
    for leaf in (
        None,
        1,
        "x",
        torch.float32,
        (),
        {"a": [1.5, None]},
        torch.tensor([float("nan"), 1.0]),
        float("nan"),
    ):
        assert_equivalent(Holder(leaf), Holder(leaf))


def test_tolerance_is_for_floating_leaves():
    assert_equivalent(torch.tensor([1.0]), torch.tensor([1.01]), rtol=0.02)
    with pytest.raises(AssertionError):
        assert_equivalent(torch.tensor([1.0]), torch.tensor([1.05]), rtol=0.02)
    with pytest.raises(AssertionError):
        assert_equivalent(torch.tensor([100]), torch.tensor([101]), rtol=0.02)
    with pytest.raises(AssertionError):
        assert_equivalent(torch.tensor([float("nan")]), torch.tensor([1.0]), rtol=0.02)


def test_weights_of_rows_in_no_slice_do_not_count(logits):
    routing = reference(logits(3, 32), 2, n_rows=2)
    assert_equivalent(replace_leaf(routing, ("gate_scal",), lambda gate: torch.cat([gate[:4], gate[4:] + 1])), routing)
    changed = replace_leaf(routing, ("gate_scal",), lambda gate: torch.cat([gate[:3], gate[3:] + 1]))
    assert "gate_scal[3]" in different(changed, routing)
    assert "gate_scal: dtype" in different(replace_leaf(routing, ("gate_scal",), torch.Tensor.float), routing)
    assert "gate_scal: NoneType" in different(replace_leaf(routing, ("gate_scal",), lambda _: None), routing)
