"""Whether two routings are the same, leaf by leaf, and where they first differ."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from gptoss_lab.moe.generations import sparse_kernels
from gptoss_lab.moe.routing import Routing

PLAIN = (bool, int, float, str, torch.dtype, torch.device)


def assert_equivalent(actual: Any, expected: Any, *, rtol: float = 0.0, atol: float = 0.0, path: str = "") -> None:
    """Compare two values down to their leaves and raise AssertionError at the first difference.

    Both may be a `Routing`, another dataclass, a dict, list or tuple, a tensor, a number, a string or None.
    Types, dtypes, shapes and devices must agree. Tensors must be equal, and NaN equals NaN; floating ones
    may differ by rtol and atol. The message names the path, the position and both values. Anything else, a
    function for one, cannot be compared and fails: a comparison that means nothing must not pass.

    A `Routing`'s `gate_scal` is compared up to its last row with a slot; the rows after it are undefined.
    """
    tolerance = {"rtol": rtol, "atol": atol}
    name = path or type(expected).__name__
    if type(actual) is not type(expected):
        raise AssertionError(f"{name}: {type(actual).__name__} against {type(expected).__name__}")
    if isinstance(expected, torch.Tensor):
        _compare_tensors(name, actual, expected, **tolerance)
    elif isinstance(expected, Routing):
        _compare_routings(path, actual, expected, **tolerance)
    elif dataclasses.is_dataclass(expected) and not isinstance(expected, type):
        for field in dataclasses.fields(expected):
            inner = _join(path, field.name)
            assert_equivalent(getattr(actual, field.name), getattr(expected, field.name), path=inner, **tolerance)
    elif isinstance(expected, dict):
        if list(actual) != list(expected):
            raise AssertionError(f"{name}: keys {list(actual)} against {list(expected)}")
        for key in expected:
            assert_equivalent(actual[key], expected[key], path=f"{path}[{key!r}]", **tolerance)
    elif isinstance(expected, (list, tuple)):
        if len(actual) != len(expected):
            raise AssertionError(f"{name}: {len(actual)} items against {len(expected)}")
        for i, (left, right) in enumerate(zip(actual, expected, strict=True)):
            assert_equivalent(left, right, path=f"{path}[{i}]", **tolerance)
    elif isinstance(expected, PLAIN):
        if actual != expected and not (actual != actual and expected != expected):
            raise AssertionError(f"{name}: {actual!r} against {expected!r}")
    elif expected is not None:
        raise AssertionError(
            f"{name}: a {type(expected).__name__} cannot be compared, so this comparison proves nothing"
        )


def drop_padding(routing: Routing) -> Routing:
    """Return the routing with `n_experts` slices, views of the same memory.

    `rebuild` has slices up to the next multiple of 32 experts, all empty. Without them, and with the room
    in the schedule that they added cut off, it equals `reuse` for any number of experts.
    """
    ragged = routing.ragged_metadata
    experts, slots = routing.n_experts, routing.row_sorted_indx.shape[0]
    blocks = sparse_kernels().RaggedTensorMetadata.max_n_blocks(experts, slots)
    trimmed = dataclasses.replace(
        ragged,
        slice_sizes=ragged.slice_sizes[:experts],
        slice_offs=ragged.slice_offs[: experts + 1],
        block_offs_data=ragged.block_offs_data[:, : experts + 1],
        block_schedule_data=ragged.block_schedule_data[:, :blocks],
    )
    return dataclasses.replace(routing, ragged_metadata=trimmed)


def _compare_routings(path: str, actual: Routing, expected: Routing, **tolerance: float) -> None:
    for field in dataclasses.fields(expected):
        left, right = getattr(actual, field.name), getattr(expected, field.name)
        if field.name == "gate_scal":
            _compare_layout(_join(path, field.name), left, right)
        else:
            assert_equivalent(left, right, path=_join(path, field.name), **tolerance)
    # The index arrays are equal by now, so both routings have the same rows with a slot, and they come first.
    rows = int((expected.col_sorted_indx >= 0).sum())
    _compare_tensors(_join(path, "gate_scal"), actual.gate_scal[:rows], expected.gate_scal[:rows], **tolerance)


def _compare_layout(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    if not (torch.is_tensor(actual) and torch.is_tensor(expected)):
        raise AssertionError(f"{name}: {type(actual).__name__} against {type(expected).__name__}")
    for attribute in ("dtype", "shape", "device"):
        left, right = getattr(actual, attribute), getattr(expected, attribute)
        if left != right:
            raise AssertionError(f"{name}: {attribute} {left} against {right}")


def _compare_tensors(name: str, actual: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> None:
    _compare_layout(name, actual, expected)
    if expected.is_floating_point():
        close = torch.isclose(actual.float(), expected.float(), rtol=rtol, atol=atol, equal_nan=True)
    else:
        close = actual == expected
    if bool(close.all()):
        return
    wrong = (~close).nonzero()
    where = tuple(wrong[0].tolist())
    raise AssertionError(
        f"{name}{list(where)}: {actual[where].item()} against {expected[where].item()}, "
        f"and {len(wrong)} of {expected.numel()} entries differ"
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
