"""Count what a function costs: copies of tensor data, tensors alive at once, items produced ahead of use."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

COPYING = ("clone", "_to_copy", "copy_", "cat", "stack", "_foreach_copy_")
_paused = 0


@contextmanager
def paused() -> Iterator[None]:
    """Do not count inside: the checker's own snapshots of the inputs are not the learner's copies."""
    global _paused
    _paused += 1
    try:
        yield
    finally:
        _paused -= 1


@dataclass
class Copies:
    """Tensor data copied: how many `calls`, how many `bytes`, and `by_op` the calls by operation.

    The operations are "clone" (`.contiguous()` and `.reshape()` too), "_to_copy" (`.to()`, `.float()`),
    "copy_" (into memory that was there), "cat" and "stack". `allocated` is the bytes of new memory that any
    operation made: it also sees copies in disguise, such as `tensor + 0` or `tensor[index]`.
    """

    calls: int = 0
    bytes: int = 0
    allocated: int = 0
    by_op: dict[str, int] = field(default_factory=dict)


class CopyCounter(TorchDispatchMode):
    """See every PyTorch operation of this thread while active."""

    def __init__(self, copies: Copies) -> None:
        super().__init__()
        self.copies = copies

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operation imports the compiler, for seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = storages((args, kwargs))
        result = func(*args, **(kwargs or {}))
        if not _paused:
            self.count(func.overloadpacket.__name__, tensors_in(result), before)
        return result

    def count(self, name: str, results: list[torch.Tensor], before: set[int]) -> None:
        if name in COPYING:
            self.copies.calls += 1
            self.copies.bytes += sum(tensor.nbytes for tensor in results)
            self.copies.by_op[name] = self.copies.by_op.get(name, 0) + 1
        new = [tensor for tensor in results if tensor.untyped_storage()._cdata not in before]
        self.copies.allocated += sum(tensor.nbytes for tensor in new)


@contextmanager
def count_copies() -> Iterator[Copies]:
    """Count the copies of tensor data made inside the `with` block, in this thread.

    >>> with count_copies() as copies:
    ...     kept = tensor.clone()
    >>> copies.calls, copies.bytes == tensor.nbytes
    (1, True)

    Copies made by NumPy alone (`tensor.numpy().copy()`) are not seen.
    """
    copies = Copies()
    with CopyCounter(copies):
        yield copies


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a nest of lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors_in(item)] if isinstance(value, (list, tuple)) else []


def storages(value: Any) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors_in(value)}


class LiveTensors:
    """How many of the tensors that an iterator yields are alive at once.

    `watch(items)` yields the items unchanged. `alive` and `alive_bytes` are of now; `peak` and `peak_bytes`
    are the highest seen just after a new item was produced. With `by="memory"` a tensor is alive while
    anything (a view of it, too) holds its memory. With `by="object"` it is alive while the yielded object
    itself is held: the one to use where all the tensors share one buffer.
    """

    def __init__(self, by: str = "memory") -> None:
        if by not in ("memory", "object"):
            raise ValueError(f"by is {by!r}: pass 'memory' or 'object'")
        self.by = by
        self.peak = self.peak_bytes = 0
        self._held: list[tuple[weakref.ref, int]] = []

    def watch(self, items: Iterable[Any]) -> Iterator[Any]:
        """The same items; `map` and not a generator, whose frame would hold the item last yielded."""
        return map(self._note, items)

    def _note(self, item: Any) -> Any:
        for tensor in tensors_in(item):
            target = tensor.untyped_storage() if self.by == "memory" else tensor
            self._held.append((weakref.ref(target), tensor.nbytes))
        self.peak = max(self.peak, self.alive)
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes)
        return item

    @property
    def alive(self) -> int:
        self._held = [(ref, size) for ref, size in self._held if ref() is not None]
        return len(self._held)

    @property
    def alive_bytes(self) -> int:
        return sum(size for ref, size in self._held if ref() is not None)


class ProducedWhenSeen:
    """How many items had been produced by the time a consumer saw each of them.

    A lazy consumer sees item n when n items have been produced. One that lists everything first sees all of
    them when the last has been produced.

    >>> record = ProducedWhenSeen()
    >>> load(record.produce(weights), record.seeing(model.load_one))
    >>> record.seen     # [("embed", 1), ("norm", 2)]: lazy
    """

    def __init__(self) -> None:
        self.produced = 0
        self.seen: list[tuple[Any, int]] = []

    def produce(self, items: Iterable[Any]) -> Iterator[Any]:
        """The same items, counted as they are taken."""
        return map(self._note, items)

    def _note(self, item: Any) -> Any:
        self.produced += 1
        return item

    def see(self, label: Any = None) -> None:
        """Note that the consumer sees the item called `label` now."""
        self.seen.append((label, self.produced))

    def seeing(self, consume: Callable) -> Callable:
        """The same consumer, noting its first argument (a tensor's name, for instance) at each call."""

        def consume_and_note(*args: Any, **kwargs: Any) -> Any:
            self.see(args[0] if args else None)
            return consume(*args, **kwargs)

        return consume_and_note
