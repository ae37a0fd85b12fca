"""Compare what a learner's function returned with what was expected, and say where they part.

The comparison refuses to guess: what it does not know how to compare is a mismatch, never a pass.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from gptoss_lab.course.describe import PLAIN, SAME_IF_EQUAL, attributes, describe, describe_whole, kind_of, show


class Mismatch(AssertionError):
    """What was seen and what was expected, in one sentence, with an optional hint.

    `kinds` are the kind, or the dtype, that was seen and the one that was expected, where they differ; else None.
    """

    def __init__(self, message: str, hint: str = "", kinds: tuple[str, str] | None = None) -> None:
        super().__init__(message)
        self.message, self.hint, self.kinds = message, hint, kinds


@dataclasses.dataclass(frozen=True)
class Rules:
    """How to compare: exactly, bit by bit or within a tolerance; and what to do with unknown types."""

    nan_equal: bool = True
    bitwise: bool = False
    rtol: float = 0.0
    atol: float = 0.0
    unknown_by_identity: bool = False
    wanted: str = "expected"


def expect_equal(
    actual: Any,
    expected: Any,
    what: str = "the result",
    *,
    nan_equal: bool = True,
    bitwise: bool = False,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Raise `Mismatch` with the path of the first difference, or return nothing.

    Compares numbers, text, lists, tuples, dicts, sets, dataclasses, arrays and tensors, as deep as they go.
    Types come first, then dtype, then shape, then values. `bitwise` tells -0.0 from 0.0 and one NaN from
    another; otherwise NaN equals NaN unless `nan_equal` is False. `rtol` and `atol` loosen floating-point
    values only. Functions and unknown types cannot be compared, so they raise, even if both are one object.
    """
    found = difference(actual, expected, what, Rules(nan_equal, bitwise, rtol, atol))
    if found:
        raise found


def difference(actual: Any, expected: Any, path: str, rules: Rules) -> Mismatch | None:
    """The first difference, in a sentence that starts with its path; None where there is none."""
    return next(differences(actual, expected, path, rules), None)


def differences(actual: Any, expected: Any, path: str, rules: Rules) -> Iterator[Mismatch]:
    kind, wanted = kind_of(actual), kind_of(expected)
    if kind != wanted:
        # None says nothing of what is missing, so the whole of the other is shown beside it.
        say = describe_whole if "None" in (kind, wanted) else describe
        yield Mismatch(f"{path} is {say(actual)}, {rules.wanted} {say(expected)}", kinds=(kind, wanted))
    elif kind in ("list", "tuple"):
        yield from in_sequences(actual, expected, path, rules)
    elif kind == "dict":
        yield from in_dicts(actual, expected, path, rules)
    elif kind in ("set", "frozenset"):
        yield from in_sets(actual, expected, path)
    elif kind == "tensor":
        yield from in_tensors(actual, expected, path, rules)
    elif kind == "array":
        yield from in_arrays(actual, expected, path, rules)
    elif isinstance(expected, (float, complex, np.inexact)):
        ours, theirs = np.asarray(actual), np.asarray(expected)
        if not equal_values(ours, theirs, rules).all():
            yield Mismatch(f"{path} is {show(actual)}, {rules.wanted} {show(expected)}")
    elif isinstance(expected, PLAIN + SAME_IF_EQUAL + (np.generic,)):
        if actual != expected:
            yield Mismatch(f"{path} is {show(actual)}, {rules.wanted} {show(expected)}")
    elif (theirs := attributes(expected)) is not None:
        yield from in_attributes(attributes(actual) or {}, theirs, path, rules)
    elif not rules.unknown_by_identity:
        yield Mismatch(f"{path} cannot be compared: no rule for values of type {kind}")
    elif actual is not expected:
        yield Mismatch(f"{path} is another {kind} than {rules.wanted}")


def in_sequences(actual: Any, expected: Any, path: str, rules: Rules) -> Iterator[Mismatch]:
    if len(actual) != len(expected):
        yield Mismatch(
            f"{path} has {len(actual)} items, {rules.wanted} {len(expected)}: "
            f"{show(actual)}, {rules.wanted} {show(expected)}"
        )
    for i, (ours, theirs) in enumerate(zip(actual, expected, strict=False)):
        yield from differences(ours, theirs, f"{path}[{i}]", rules)


def in_dicts(actual: dict, expected: dict, path: str, rules: Rules) -> Iterator[Mismatch]:
    missing = [key for key in expected if key not in actual]
    extra = [key for key in actual if key not in expected]
    if missing:
        yield Mismatch(f"{path} lacks {show(missing)}")
    if extra:
        yield Mismatch(f"{path} has {show(extra)}, which should not be there")
    for key in expected:
        if key in actual:
            yield from differences(actual[key], expected[key], f"{path}[{show(key)}]", rules)


def in_attributes(actual: dict[str, Any], expected: dict[str, Any], path: str, rules: Rules) -> Iterator[Mismatch]:
    for name in expected | actual:  # in their order
        if name not in actual:
            yield Mismatch(f"{path} lacks .{name}")
        elif name not in expected:
            yield Mismatch(f"{path} has .{name}, which should not be there")
        else:
            yield from differences(actual[name], expected[name], f"{path}.{name}", rules)


def in_sets(actual: set, expected: set, path: str) -> Iterator[Mismatch]:
    if missing := expected - actual:
        yield Mismatch(f"{path} lacks {show(sorted(missing, key=repr))}")
    if extra := actual - expected:
        yield Mismatch(f"{path} has {show(sorted(extra, key=repr))}, which should not be there")


def in_tensors(actual: torch.Tensor, expected: torch.Tensor, path: str, rules: Rules) -> Iterator[Mismatch]:
    for name in ("dtype", "layout", "device"):
        ours, theirs = getattr(actual, name), getattr(expected, name)
        if ours != theirs:
            kinds = (str(ours), str(theirs)) if name == "dtype" else None
            yield Mismatch(f"{path} has {name} {ours}, {rules.wanted} {theirs}", kinds=kinds)
            return
    if expected.layout != torch.strided or expected.is_quantized or expected.device.type == "meta":
        if not rules.unknown_by_identity:
            yield Mismatch(f"{path} cannot be compared: it is not a plain dense tensor")
        return
    yield from in_elements(as_array(actual, rules), as_array(expected, rules), actual, expected, path, rules)


def in_arrays(actual: np.ndarray, expected: np.ndarray, path: str, rules: Rules) -> Iterator[Mismatch]:
    if actual.dtype != expected.dtype:
        kinds = (str(actual.dtype), str(expected.dtype))
        yield Mismatch(f"{path} has dtype {actual.dtype}, {rules.wanted} {expected.dtype}", kinds=kinds)
    elif expected.dtype.hasobject:
        if not rules.unknown_by_identity:
            yield Mismatch(f"{path} cannot be compared: an array of Python objects")
    else:
        yield from in_elements(actual, expected, actual, expected, path, rules)


def in_elements(ours: np.ndarray, theirs: np.ndarray, actual, expected, path: str, rules: Rules) -> Iterator[Mismatch]:
    """Compare values; `actual` and `expected` are the originals, from which the message quotes."""
    if ours.shape != theirs.shape:
        yield Mismatch(f"{path} has shape {list(ours.shape)}, {rules.wanted} {list(theirs.shape)}")
        return
    wrong = np.argwhere(~equal_values(ours, theirs, rules))
    if len(wrong):
        first = tuple(int(i) for i in wrong[0])
        place = f" first at {list(first)}:" if first else ""
        seen, wanted = show(actual[first].item()), show(expected[first].item())
        yield Mismatch(f"{path}: {len(wrong)} of {theirs.size} values differ,{place} {seen}, {rules.wanted} {wanted}")


def as_array(tensor: torch.Tensor, rules: Rules) -> np.ndarray:
    """The tensor's values as NumPy sees them: bits if asked for, float32 for the floats that NumPy lacks."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if rules.bitwise and tensor.is_floating_point():
        return tensor.contiguous().view(BITS[tensor.element_size()]).numpy()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    return tensor.numpy()


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def equal_values(ours: np.ndarray, theirs: np.ndarray, rules: Rules) -> np.ndarray:
    """A boolean for each element."""
    if rules.bitwise and theirs.dtype.kind in "fc":
        shape = theirs.shape + (theirs.dtype.itemsize,)
        ours, theirs = (np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(shape) for a in (ours, theirs))
        return (ours == theirs).all(axis=-1)
    same = np.asarray(ours == theirs)
    if theirs.dtype.kind not in "fc":
        return same
    if rules.rtol or rules.atol:
        same = same | np.isclose(ours, theirs, rules.rtol, rules.atol)
    return same | (np.isnan(ours) & np.isnan(theirs)) if rules.nan_equal else same


def snapshot(value: Any) -> Any:
    """A deep copy of the data in `value`; what is not data (functions, modules, objects with methods) stays."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(snapshot(item) for item in value)
    if isinstance(value, dict):
        return {key: snapshot(item) for key, item in value.items()}
    if (held := attributes(value)) is not None:
        twin = copy.copy(value)
        for name, item in held.items():
            object.__setattr__(twin, name, snapshot(item))
        return twin
    return value
