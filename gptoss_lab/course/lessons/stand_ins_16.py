"""What stands in for a stream, a loader's halves and a GPU in the checkers of `16__the_fix`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from gptoss_lab.course.check import Mismatch, expect_equal

Weights = Iterable[tuple[str, torch.Tensor]]
OVERWRITTEN = -1.0  # what the buffer holds when the stream has ended


class Loader:
    """A stream over one reused buffer, and both halves of a loader, all of which take notes."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names, self.buffer = list(names), torch.empty(4)
        self.produced = 0
        self.calls: list[str] = []
        self.experts: dict[str, float] = {}
        self.normal: dict[str, float] = {}
        self.seen: list[int] = []
        self.owned: list[int] = []
        self.copies: list[torch.Tensor] = []
        self.strangers: list[str] = []

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor is a view of the same four numbers, overwritten at each step."""
        for value, name in enumerate(self.names):
            self.buffer.fill_(value)
            self.produced += 1
            yield name, self.buffer[:]
        self.buffer.fill_(OVERWRITTEN)

    def load_experts(self, weights: Weights) -> None:
        self.calls.append("experts")
        for name, tensor in weights:
            self.seen.append(self.produced)
            self.experts[name] = tensor[0].item()
            if tensor.data_ptr() != self.buffer.data_ptr():
                self.strangers.append(name)

    def load_normal(self, weights: Weights) -> None:
        self.calls.append("normal")
        for name, tensor in weights:
            self.normal[name] = tensor[0].item()
            if not any(tensor is copy for copy in self.copies):
                self.strangers.append(name)

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        self.owned.append(self.produced)
        self.copies.append(tensor.clone())
        return self.copies[-1]

    def run(self, load_lazily: Callable) -> Loader:
        load_lazily(self.weights(), self.load_experts, self.load_normal, self.own)
        return self


def expect_read(read: dict[str, float], expected: dict[str, float], what: str) -> None:
    """As `expect_equal`, and say what the mark of a tensor means that was read after the stream had ended."""
    try:
        expect_equal(read, expected, what)
    except Mismatch as found:
        wrong = next((read[name] for name in expected if name in read and read[name] != expected[name]), None)
        if wrong == OVERWRITTEN:
            found = Mismatch(f"{found.message}: before it was read, the buffer was overwritten with {wrong}")
        raise found from None


class OnDevice(torch.Tensor):
    """Stands for a tensor on a GPU where there is none: its values leave the device only when asked to."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnDevice:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device="cuda")

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        stays = isinstance(args[0], cls)
        if kwargs.get("device") is not None:
            stays = torch.device(kwargs["device"]).type != "cpu"
            kwargs["device"] = torch.device("cpu")
        result = func(*(arg.held if isinstance(arg, cls) else arg for arg in args), **kwargs)
        return cls(result) if stays else result
