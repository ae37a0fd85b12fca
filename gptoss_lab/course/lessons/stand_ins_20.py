"""What stands in for a stream and a loader's two halves in the checkers of `20__ownership`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator

import torch

from gptoss_lab.course.check import Mismatch
from gptoss_lab.course.lessons.stand_ins_18 import Lender


def expect_ran(returned: object) -> object:
    """Hand on what a loader returned; raise `Mismatch` if that is a generator."""
    if inspect.isgenerator(returned):
        hint = "a `yield` makes a generator of the whole function: let it stand in a function inside, or not at all."
        raise Mismatch("returned a generator: its body never ran", hint)
    return returned


class Halves:
    """A stream of tensors of 8 bytes over a buffer for two of them, and both halves of a loader, which take notes."""

    def __init__(self, names: Iterable[str], stop_after: int | None = None, dtype: torch.dtype = torch.uint8) -> None:
        shape = (8 // dtype.itemsize,)
        self.stored = {name: torch.full(shape, place + 1, dtype=dtype) for place, name in enumerate(names)}
        self.lender = Lender(self.stored, 16)
        self.stop_after = stop_after
        self.calls: list[str] = []
        self.experts: dict[str, torch.Tensor] = {}
        self.normal: dict[str, torch.Tensor] = {}
        self.seen: list[int] = []
        self.returned: object = None

    def load_experts(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Reads each expert when it gets it; stops after some, if told to."""
        self.calls.append("experts")
        for name, tensor in weights:
            self.seen.append(self.lender.produced)
            self.experts[name] = torch.tensor(tensor.tolist(), dtype=tensor.dtype)  # read now, and not by a copy
            if len(self.seen) == self.stop_after:
                break

    def load_normal(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.calls.append("normal")
        for name, tensor in weights:
            self.normal[name] = torch.tensor(tensor.tolist(), dtype=tensor.dtype)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The stream; when it has ended, its buffer belongs to somebody else."""
        yield from self.lender.weights()
        self.lender.buffer[:] = bytes(len(self.lender.buffer))

    def run(self, load_quark: Callable) -> Halves:
        self.returned = expect_ran(load_quark(self.weights(), self.load_experts, self.load_normal))
        return self
