"""Say what a value is in a few words that are the same in every run."""

from __future__ import annotations

import enum
import math
import pathlib
import re
from typing import Any

import numpy as np
import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice)
SAME_IF_EQUAL = (torch.dtype, torch.device, np.dtype, enum.Enum, pathlib.PurePath, type)


def kind_of(value: Any) -> str:
    """The name of the group of types whose members may equal each other."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, np.ndarray):
        return "array"
    if value is None:
        return "None"
    for kind in (dict, list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind.__name__
    if isinstance(value, pathlib.PurePath):
        return "path"
    return type(value).__name__


def describe(value: Any) -> str:
    """What a value is, short: `a tensor of float32 [3, 4]`, `a list of 3 items`, `the int 3`."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        name = "a tensor" if isinstance(value, torch.Tensor) else "an array"
        text = f"{name} of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        return f"{text} {value.tolist()}" if 0 < math.prod(value.shape) <= 4 else text
    kind = kind_of(value)
    if kind in ("dict", "list", "tuple", "set", "frozenset"):
        return f"a {kind} of {len(value)} items"
    return "None" if value is None else f"the {kind} {show(value)}" if is_plain(value) else f"a {kind}"


def is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN + SAME_IF_EQUAL + (np.generic, list, tuple, dict, set, frozenset))


def show(value: Any, limit: int = 80) -> str:
    """The value in one line of at most `limit` characters, without memory addresses."""
    if not is_plain(value):
        return describe(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (set, frozenset)) and value:
        value = sorted(value, key=repr)
    text = without_addresses(" ".join(repr(value).split()))
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]{6,}", "0x...", text)
