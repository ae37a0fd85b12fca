"""What a mend costs: the bytes that it copies, and the most that its copies hold at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Price(TorchDispatchMode):
    """Copies that change nothing but the owner, made while entered: `bytes` in all, `peak` alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._alive: list[tuple[StorageWeakRef, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operation imports the compiler, for seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("clone", "_to_copy") and result.dtype == args[0].dtype:
            self.bytes += result.nbytes
            self._alive = [(storage, size) for storage, size in self._alive if not storage.expired()]
            self._alive.append((StorageWeakRef(result.untyped_storage()), result.nbytes))
            self.peak = max(self.peak, sum(size for _, size in self._alive))
        return result


def price_of(load: Callable, model: Any, weights: Iterable) -> Price:
    """Load a model and return what the loader copied on the way."""
    price = Price()
    with price:
        load(model, weights)
    return price
