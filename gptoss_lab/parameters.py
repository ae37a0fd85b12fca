"""Modules that are made empty and filled from a checkpoint, one tensor at a time, by copying.

Loaders are what the first part of the course is about. This is the far end of each of them: the place where
a tensor's bytes come to rest. A copy is the whole contract. Once `copy_in` has returned, the source may be
overwritten, and the parameter keeps its value.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TensorRefused(ValueError):
    """A tensor that does not fit the model: unknown name, other shape, other kind of dtype."""


class ModelNotReady(RuntimeError):
    """The model was asked to run before every parameter was filled, or after a load that failed."""


def empty(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A parameter with no value yet. PyTorch's own layers would draw random ones first."""
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


class Linear(nn.Module):
    """x [..., inputs] -> x @ weight.T + bias [..., outputs]."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, bias: bool = True) -> None:
        super().__init__()
        self.weight = empty(outputs, inputs, dtype=dtype)
        self.bias = empty(outputs, dtype=dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)  # [..., outputs]


class Embedding(nn.Module):
    """tokens [n] -> their rows of the table [n, size]."""

    def __init__(self, rows: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = empty(rows, size, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)  # [n, size]


class Loadable(nn.Module):
    """The bookkeeping that a loader needs, kept apart from the maths.

    A subclass makes its parameters empty. A loader calls `copy_in` for every tensor of the checkpoint, and
    `mark_unusable` when it fails half way. The subclass calls `require_ready` before it computes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.unusable: str | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every parameter's name, in the order in which the modules define them."""
        return tuple(name for name, _ in self.named_parameters())

    def copy_in(self, name: str, tensor: Tensor) -> None:
        """Copy one tensor into the parameter of that name, casting between floating-point dtypes.

        Raises:
            TensorRefused: the name is unknown, the shape differs, or bytes would be read as numbers (a uint8
                tensor for a floating-point parameter, or the reverse). The parameter is left as it was.
        """
        parameter = self._parameter(name)
        if tensor.shape != parameter.shape:
            raise TensorRefused(
                f"tensor {name!r} has shape {list(tensor.shape)}, the model wants {list(parameter.shape)}: "
                "load the checkpoint with its own config.json"
            )
        same_kind = tensor.is_floating_point() and parameter.is_floating_point()
        if not same_kind and tensor.dtype != parameter.dtype:
            raise TensorRefused(
                f"tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, the model wants {parameter.dtype} "
                f"{list(parameter.shape)}: pass MXFP4 blocks and scales as uint8, others as floating point"
            )
        with torch.no_grad():
            parameter.copy_(tensor)
        self.loaded.add(name)

    def missing(self) -> list[str]:
        """The names that nobody has copied in yet, in the order of `names`."""
        return [name for name in self.names if name not in self.loaded]

    def mark_unusable(self, reason: str) -> None:
        """Refuse to run from now on: a load broke off, so some parameters may hold wrong bytes."""
        self.unusable = reason

    def require_ready(self) -> None:
        """Raise `ModelNotReady` unless every parameter was copied in and nobody marked the model unusable."""
        if self.unusable is not None:
            raise ModelNotReady(f"this model was marked unusable: {self.unusable}. Make a new one and load it again")
        if len(self.loaded) < len(self.names):
            missing = self.missing()
            first = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise ModelNotReady(
                f"{len(missing)} of {len(self.names)} tensors were never copied into this model: {first}. "
                "Load the rest with copy_in(name, tensor) before you run it"
            )

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """PyTorch's own way to fill a module; the names are booked as `copy_in` books them."""
        result = super().load_state_dict(state_dict, strict=strict, assign=assign)
        self.loaded |= set(state_dict) & set(self.names)
        return result

    def _parameter(self, name: str) -> nn.Parameter:
        try:
            return self.get_parameter(name)
        except AttributeError:
            close = difflib.get_close_matches(name, self.names, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise TensorRefused(
                f"tensor {name!r} is unknown to this model, which has {len(self.names)} parameters: {hint}"
                "Rename it, or leave it out"
            ) from None
