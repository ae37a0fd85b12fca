"""What stands in for a stream, a loader's halves and a GPU in the checkers of `16__the_fix`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator

import torch

from gptoss_lab.course.check import Mismatch, expect_equal

Weights = Iterable[tuple[str, torch.Tensor]]
OVERWRITTEN = -1.0  # what the buffer holds when the stream has ended
OWN_YIELD = (
    "`load_lazily` has a `yield` of its own, so calling it runs nothing: put the `yield` into an inner function."
)


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
        result = load_lazily(self.weights(), self.load_experts, self.load_normal, self.own)
        if inspect.isgenerator(result):
            raise Mismatch("the result is a generator, and neither half was called", OWN_YIELD)
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


def expect_counts(counts: list[int], expected: list[int], what: str = "the result") -> None:
    """As `expect_equal`, and say what gives counts like these."""
    try:
        expect_equal(counts, expected, what)
    except Mismatch as found:
        raise Mismatch(found.message, _why(counts, expected), found.kinds) from None


def _why(counts: list[int], expected: list[int]) -> str:
    if not isinstance(counts, list) or not all(isinstance(count, int) for count in counts):
        return ""
    if not counts:
        return "Put `.experts.` into the names: a loader tells experts by it."
    if 0 in counts and expected[0] < 3:  # with a loader that drains, no count in the generator is 0
        return "Raise the count before `yield`, not after it."
    if len(counts) == 3 and max(counts) > 3:
        return "Every call starts from nothing: no counter outside the function."
    if counts == [3, 3, 3]:
        return "Hand over a generator, not a list. The recorder loops over `weights` and notes the count."
    return ""


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
        if kwargs.get("non_blocking") or (func is torch.ops.aten.copy_.default and args[2:] == (True,)):
            hint = "Leave `non_blocking` out: the copy must be there when `own` returns."
            raise Mismatch("the copy from a device was asked for with non_blocking=True", hint)
        stays = isinstance(args[0], cls)
        if kwargs.get("device") is not None:
            stays = torch.device(kwargs["device"]).type != "cpu"
            kwargs["device"] = torch.device("cpu")
        result = func(*(arg.held if isinstance(arg, cls) else arg for arg in args), **kwargs)
        return cls(result) if stays else result


class NeedsGpu:
    """A model class whose `__init__` must not be called."""

    def __init__(self) -> None:
        raise RuntimeError("no GPU found: make the instance without __init__, with object.__new__")

    def _load_mxfp4_experts_weights(self, weights: Weights) -> None:
        raise RuntimeError("the real expert half was called: replace it on the instance")

    def _load_normal_weights(self, weights: Weights) -> None:
        raise RuntimeError("the real normal half was called: replace it on the instance")


class ReadsAhead(NeedsGpu):
    """Asks for the next tensor before it hands over the last one."""

    def _load_weights_mxfp4(self, weights: Weights) -> None:
        def one_ahead() -> Iterator[tuple[str, torch.Tensor]]:
            held = None
            for pair in weights:
                if held is not None:
                    yield held
                held = pair
            if held is not None:
                yield held

        self._load_mxfp4_experts_weights(one_ahead())
        self._load_normal_weights([])


class LoadsNormalFirst(NeedsGpu):
    """Calls the halves in the other order."""

    def _load_weights_mxfp4(self, weights: Weights) -> None:
        self._load_normal_weights([])
        self._load_mxfp4_experts_weights(weights)
