"""What `46__what_parity_misses` builds: faults to plant, checks that share nothing with them, and a sentinel."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gptoss_lab.model import Experts, GptOss
from gptoss_lab.moe import routing
from gptoss_lab.moe.by_hand import schedule_blocks
from gptoss_lab.moe.experts import BLOCK, run_blocks
from gptoss_lab.moe.routing import Routing

healthy_reuse = routing.reuse  # kept, since the lesson replaces the module's


def next_token(model: GptOss, tokens: list[int], made: Routing) -> int:
    """Return the model's next token when the experts of layer 0 work by `made`, the others as always."""
    layer_0 = model.model.layers[0].mlp.experts

    def experts(layer: Experts, hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return run_blocks(layer, hidden, made) if layer is layer_0 else layer(hidden, logits)

    return int(model(torch.tensor(tokens), experts=experts)[-1].argmax())


def _with_ragged(made: Routing, **changes: torch.Tensor) -> Routing:
    return dataclasses.replace(made, ragged_metadata=dataclasses.replace(made.ragged_metadata, **changes))


def weights_of_other_rows(sparse: Any, n_experts: int) -> Routing:
    """`reuse`, but the weights are picked by dispatch, where combine belongs."""
    made = healthy_reuse(sparse, n_experts)
    return dataclasses.replace(made, gate_scal=sparse.vals.flatten()[made.row_sorted_indx])


def one_index_for_both_ways(sparse: Any, n_experts: int) -> Routing:
    """`reuse`, but combine serves as dispatch too."""
    made = healthy_reuse(sparse, n_experts)
    return dataclasses.replace(made, row_sorted_indx=made.col_sorted_indx)


def shifted_offsets(sparse: Any, n_experts: int) -> Routing:
    """`reuse`, but each expert's rows begin where the next one's do."""
    made = healthy_reuse(sparse, n_experts)
    offsets = made.ragged_metadata.slice_offs
    return _with_ragged(made, slice_offs=torch.cat([offsets[1:], offsets[-1:]]))


def neighbours_in_the_schedule(sparse: Any, n_experts: int) -> Routing:
    """`reuse`, but each entry of the schedule names the expert beside the right one."""
    made = healthy_reuse(sparse, n_experts)
    schedule = made.ragged_metadata.block_schedule_data
    return _with_ragged(made, block_schedule_data=torch.where(schedule < 0, schedule, schedule ^ 1))


FAULTS: dict[str, Callable[[Any, int], Routing]] = {
    "weights of other rows": weights_of_other_rows,
    "one index for both ways": one_index_for_both_ways,
    "shifted offsets": shifted_offsets,
    "neighbours in the schedule": neighbours_in_the_schedule,
}
"""Functions that can stand in the place of `reuse`, by name."""


def fails(check: Callable[..., Any], *args: Any, **options: Any) -> bool:
    """Return whether a check raises AssertionError or ValueError. Other errors come through: they are no finding."""
    try:
        check(*args, **options)
    except (AssertionError, ValueError):
        return True
    return False


def as_arrays(made: Routing) -> dict[str, np.ndarray]:
    """Return what a routing holds as NumPy arrays: int32, and `gate_scal` float32.

    `gate_scal`, `col_sorted_indx` and `row_sorted_indx` [slots], `slice_sizes` [slices], `slice_offs`
    [slices + 1], and `schedule` [blocks], the line for blocks of 16 rows.
    """
    ragged = made.ragged_metadata
    tensors = {
        "gate_scal": made.gate_scal.float(),
        "col_sorted_indx": made.col_sorted_indx,
        "row_sorted_indx": made.row_sorted_indx,
        "slice_sizes": ragged.slice_sizes,
        "slice_offs": ragged.slice_offs,
        "schedule": ragged.block_schedule(BLOCK),
    }
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def check_routing(arrays: dict[str, np.ndarray], ids: np.ndarray, weights: np.ndarray) -> str | None:
    """Return None if the arrays of `as_arrays` are right for ids and weights, or a sentence about the first wrong one.

    ids: integers [tokens, k], each an expert. weights: float32 [tokens, k]. There may be more slices than experts.
    """
    slots = np.argsort(ids.reshape(-1), kind="stable")  # [rows]
    sizes = np.bincount(ids.reshape(-1), minlength=len(arrays["slice_sizes"]))  # [slices]
    expected = {
        "col_sorted_indx": slots,
        "row_sorted_indx": np.argsort(slots),
        "gate_scal": weights.reshape(-1)[slots],
        "slice_sizes": sizes,
        "slice_offs": np.cumsum([0, *sizes]),
        "schedule": schedule_blocks(sizes, BLOCK, len(arrays["schedule"])),
    }
    for name, values in expected.items():
        if not np.array_equal(arrays[name], values, equal_nan=name == "gate_scal"):
            return f"{name} is not what the ids and weights ask for"
    return None


def entered(fn: Callable[[], Any], owner: Any, name: str) -> bool:
    """Return whether calling `fn` calls the function that is `owner.name`, and leave that function in its place.

    owner: a module, class or other object. The function still does its work, and an error of `fn` comes through.
    Who has bound the function under a name of its own is not seen.
    """
    original, calls = getattr(owner, name), []

    def sentinel(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    setattr(owner, name, sentinel)
    try:
        fn()
    finally:
        setattr(owner, name, original)
    return bool(calls)


def first_difference(a: Any, b: Any) -> tuple | None:
    """Return the path of the first difference of two values, field names, keys and indices; None if there is none.

    Compares dataclasses, dicts, lists, tuples, tensors, bool, int, float, str and None. Type comes first, of
    tensors then dtype and shape. NaN equals NaN. What cannot be compared is a difference.
    """
    if type(a) is not type(b):
        return ()
    if isinstance(a, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
        return None if same else ()
    if isinstance(a, (bool, int, float, str, type(None))):
        return None if a == b or (a != a and b != b) else ()
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        a, b = ({f.name: getattr(v, f.name) for f in dataclasses.fields(v)} for v in (a, b))
    if isinstance(a, (list, tuple)):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if not isinstance(a, dict) or a.keys() != b.keys():
        return ()
    for key in a:
        path = first_difference(a[key], b[key])
        if path is not None:
            return (key, *path)
    return None


def run_child(source: str, seconds: float = 120.0) -> tuple[int, list[str]]:
    """Run Python source in a process of its own; return its exit status, negative for a signal, and what it printed."""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=seconds, check=False)
    return done.returncode, done.stdout.splitlines()
