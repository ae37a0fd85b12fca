"""Say what a value is in a few words that are the same in every run."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import pathlib
import re
from functools import cached_property
from typing import Any

import numpy as np
import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice)
FEW = 16  # elements of a tensor that is shown in a call
SHOWN = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
SHOWN += (torch.bfloat16, torch.float16, torch.float32, torch.float64)
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
    return "None" if value is None else f"the {kind} {show(value)}" if is_plain(value) else f"{article(kind)} {kind}"


def article(noun: str) -> str:
    return "an" if noun[:1].lower() in "aeiou" else "a"


def describe_whole(value: Any) -> str:
    """As `describe`, but with the items of a list, tuple, dict or set."""
    return show(value) if isinstance(value, (list, tuple, dict, set, frozenset)) else describe(value)


def attributes(value: Any) -> dict[str, Any] | None:
    """What an object holds, fields first, if it is data; otherwise None.

    Data are dataclasses and objects of classes without methods. Other objects change as they are used. What a
    `cached_property` has kept is not counted: it is derived from the rest.
    """
    own = dict(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        own = {name: getattr(value, name) for name in names if hasattr(value, name)} | own
    elif not own or callable(value) or inspect.ismodule(value) or has_methods(type(value)):
        return None
    derived = {name for name in own if isinstance(getattr(type(value), name, None), cached_property)}
    return {name: item for name, item in own.items() if name not in derived}


def has_methods(kind: type) -> bool:
    """Whether a class has functions of its own, other than `__init__`, `__repr__` and `__eq__`."""
    written = {name for base in kind.__mro__ for name, item in vars(base).items() if inspect.isfunction(item)}
    return bool(written - {"__init__", "__repr__", "__eq__"})


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


def show_call(function: str, arguments: dict[str, Any], positional: int, limit: int = 200) -> str:
    """A call as one would type it, the first `positional` arguments without their names.

    Empty if it would be longer than `limit`, or if an argument is no small piece of plain data.
    """
    if not arguments or not all(is_small(value) for value in arguments.values()):
        return ""
    names = ["" if i < positional else f"{name}=" for i, name in enumerate(arguments)]
    values = [" ".join(literal(value).split()) for value in arguments.values()]
    call = f"{function}({', '.join(map(str.__add__, names, values))})"
    return call if len(call) <= limit else ""


def literal(value: Any) -> str:
    """As `repr`, but a tensor's or an array's numbers are not rounded, so that a hair's breadth shows."""
    if not isinstance(value, (torch.Tensor, np.ndarray)):
        return repr(value)
    name, dtype = ("tensor", value.dtype) if isinstance(value, torch.Tensor) else ("array", value.dtype.name)
    plain = value.detach().cpu().resolve_neg() if isinstance(value, torch.Tensor) else value
    array = np.asarray(plain.float() if dtype in (torch.bfloat16, torch.float16) else plain)
    shortest = {"float_kind": lambda number: repr(float(str(number))), "int_kind": str, "bool": str}
    text = np.array2string(array, separator=", ", formatter=shortest)
    usual = (torch.float32, torch.int64, torch.bool, "float64", "int64", "bool")
    return f"{name}({text})" if dtype in usual else f"{name}({text}, dtype={dtype})"


def is_small(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_small(item) for item in value)
    if isinstance(value, dict):
        return all(is_small(item) for item in value.values())
    if isinstance(value, np.ndarray):
        return value.size <= FEW and not value.dtype.hasobject
    if isinstance(value, torch.Tensor):
        plain = type(value) is torch.Tensor and value.layout == torch.strided and value.device.type != "meta"
        return plain and value.dtype in SHOWN and value.numel() <= FEW
    return isinstance(value, (*PLAIN, torch.dtype, np.generic))


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]{6,}", "0x...", text)
