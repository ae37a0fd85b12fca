"""What stands in for a stream, a worker thread and a counter of copies in lessons 18 and 22."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gptoss_lab.weights.compare import raw_bytes
from gptoss_lab.weights.plan import Plan, Slot


class Lender:
    """A stream over one reused buffer, like the streamer's, of tensors in the order in which they are given.

    A request is written as a whole before its first tensor is yielded; with `lazily`, each tensor of it is written
    when it is asked for: the slowest writer that keeps the contract.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], limit: int, lazily: bool = False) -> None:
        self.tensors, self.lazily = dict(tensors), lazily
        self.layout = Plan(limit, limit, tuple(pack(self.tensors, limit)))
        self.buffer = bytearray(limit)
        self.produced = 0
        self.ended = False

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {tensor.nbytes}" for name, tensor in self.tensors.items())
        return f"bytes: {sizes or 'none'}; buffer: {len(self.buffer)}"

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The stream; to be taken once."""
        for request in self.layout.requests:
            if not self.lazily:
                for slot in request:
                    self.write(slot)
            for slot in request:
                self.write(slot)
                self.produced += 1
                yield slot.name, self.view(slot)
        self.ended = True

    def write(self, slot: Slot) -> None:
        self.buffer[slot.start : slot.stop] = raw_bytes(self.tensors[slot.name])

    def view(self, slot: Slot) -> torch.Tensor:
        like = self.tensors[slot.name]
        return torch.frombuffer(self.buffer, dtype=like.dtype, count=like.numel(), offset=slot.start).view(like.shape)


def pack(tensors: Mapping[str, torch.Tensor], limit: int) -> Iterator[Slot]:
    """Give each tensor its slot, as lesson 12 does."""
    request = start = 0
    for name, tensor in tensors.items():
        if start + tensor.nbytes > limit:
            request, start = request + 1, 0
        yield Slot(name, request, start, start + tensor.nbytes)
        start += tensor.nbytes


class InTime(Executor):
    """A worker thread that has finished each job before the next one is handed over."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1)

    def submit(self, function: Callable, /, *args: Any) -> Future:
        done = self.thread.submit(function, *args)
        done.exception()  # waits
        return done

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        self.thread.shutdown(wait)


class OneStepLate(InTime):
    """A worker thread that is always one job behind: the worst moment for every tensor, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: tuple[Future, Callable, tuple] | None = None

    def submit(self, function: Callable, /, *args: Any) -> Future:
        self.run()
        self.waiting = Future(), function, args
        return self.waiting[0]

    def run(self) -> None:
        if self.waiting is None:
            return
        (future, function, args), self.waiting = self.waiting, None
        done = self.thread.submit(function, *args)
        error = done.exception()
        future.set_exception(error) if error else future.set_result(done.result())

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        self.run()
        super().shutdown(wait)


class PlainCopies(TorchDispatchMode):
    """The bytes of all copies that change nothing but the owner, made while entered."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operation imports the compiler, for seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("clone", "_to_copy") and result.dtype == args[0].dtype:
            self.bytes += result.nbytes
        return result
