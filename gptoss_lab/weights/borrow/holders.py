"""Who holds a tensor's storage: nothing but variables of running code, or something that lasts.

A loop variable goes on naming a tensor until it is given the next one. In a loader of several generators that can be
many steps of the stream later, and nobody means to read it. Such a variable is no evidence, so it is told apart from a
list, an attribute, a closure, a view or an array that holds the storage.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass
class Named:
    """An object that variables name, and by how many references they (and tuples that they name) hold it."""

    thing: Any
    references: int
    variable: str

    def held_elsewhere(self) -> bool:
        """Tell whether there are more references than these: its own field and the argument below are two."""
        return sys.getrefcount(self.thing) - 2 > self.references


class Reference:
    """Follows a tensor without keeping it, and all that shares its storage with it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._address = storage._cdata
        # In a distributed stream all tensors share one buffer's storage, whose life tells nothing.
        self._shared = storage.nbytes() != tensor.nbytes
        self._weak: Any = weakref.ref(tensor) if self._shared else StorageWeakRef(storage)

    def expired(self) -> bool:
        """Tell whether nothing holds the tensor any more, nor what was derived from it."""
        return self._weak() is None if self._shared else self._weak.expired()

    def variable(self) -> str | None:
        """The variable that holds it, if it is held by variables of running code alone; else None."""
        if self._shared:
            return None
        tensors, tuples = named_tensors(self._address)
        roots = hidden_roots(tensors)
        # Owners of a storage: each tensor on it, and the object that `untyped_storage()` gives.
        all_named = uses(self._address) == len(tensors) + len(roots) + 1
        if not all_named or any(named.held_elsewhere() for named in [*tensors, *tuples, *roots]):
            return None
        return tensors[0].variable if tensors else None


def uses(address: int) -> int:
    """How many owners a storage has."""
    return torch._C._storage_Use_Count(address)


def named_tensors(address: int) -> tuple[list[Named], list[Named]]:
    """The tensors on a storage that variables of the running code name, and the tuples through which they do."""
    tensors: dict[int, Named] = {}
    tuples: dict[int, Named] = {}
    for variable, value in variables(sys._getframe(1)):
        if is_on(value, address):
            tensors.setdefault(id(value), Named(value, 0, variable)).references += 1
        elif type(value) is tuple and len(value) <= 4:  # a loop variable for (name, tensor) as a whole
            inside = [part for part in value if is_on(part, address)]
            if not inside:
                continue
            new = id(value) not in tuples
            tuples.setdefault(id(value), Named(value, 0, variable)).references += 1
            for part in inside if new else ():
                tensors.setdefault(id(part), Named(part, 0, variable)).references += 1
    return list(tensors.values()), list(tuples.values())


def hidden_roots(tensors: list[Named]) -> list[Named]:
    """The tensors that torch keeps because named ones are views of them."""
    named = {id(tensor.thing) for tensor in tensors}
    roots: dict[int, Named] = {}
    for tensor in tensors:
        root = tensor.thing._base
        if root is not None and id(root) not in named:
            roots[id(root)] = Named(root, references_to_a_root(), tensor.variable)
    return list(roots.values())


@cache
def references_to_a_root() -> int:
    """How many references torch itself has to a tensor that lives on in its views alone. Depends on the release."""
    view = torch.empty(1).view(1)
    root = Named(view._base, 0, "")
    return sys.getrefcount(root.thing) - 2


def variables(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Every variable of this thread's running functions, generators and modules, with a description."""
    while frame is not None:
        code = frame.f_code
        values = frame.f_locals
        if code.co_flags & CO_OPTIMIZED:
            for name in (*code.co_varnames, *code.co_cellvars):
                if name in values:
                    yield f"{name!r} of {code.co_name}", values[name]
            values.clear()  # a copy, which the frame would keep, and with it the tensors
        else:
            for name, value in list(values.items()):
                yield f"{name!r} of {code.co_name}", value
        frame = frame.f_back


def is_on(value: Any, address: int) -> bool:
    """Tell whether a value is a tensor that lies on a storage."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return value.untyped_storage()._cdata == address
