"""The loader of `90__on_your_own`, its model, and what the checkers put around a load to judge it."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from gptoss_lab.course.costs import storages, tensors_in
from gptoss_lab.weights.borrow import audit
from gptoss_lab.weights.checkpoint import TensorSpec
from gptoss_lab.weights.compare import differing, same_bytes
from gptoss_lab.weights.report import Weights
from gptoss_lab.weights.streaming import TORCH_DTYPES, plan, stream


class TiedModel:
    """A model that is nothing but its parameters. It has no memory for a parameter before it needs it.

    `tensors` may be read at any time: the parameters that were loaded so far, by name.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def copy_in(self, name: str, tensor: torch.Tensor) -> None:
        """Make a parameter and copy `tensor` into it."""
        self.tensors[name] = tensor.detach().clone(memory_format=torch.contiguous_format)

    def tie(self, name: str, other: str) -> None:
        """Let `name` use the parameter that `other` has."""
        self.tensors[name] = self.tensors[other]

    @property
    def parameter_bytes(self) -> int:
        """The bytes of all parameters; one that two names share counts once."""
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in self.tensors.values()}.values())


def load_tied(model: TiedModel, weights: Weights) -> None:
    """Load every tensor. Tensors with the same bytes share one parameter."""
    distinct = {}  # (dtype, shape) -> the tensors so far that have no equal
    for name, tensor in weights:
        peers = distinct.setdefault((tensor.dtype, tensor.shape), [])
        twin = next((other for other, peer in peers if same_bytes(peer, tensor)), None)
        if twin is None:
            model.copy_in(name, tensor)
            peers.append((name, tensor))
        else:
            model.tie(name, twin)


def wrong_at(load: Callable, files: list[Path], limit: int) -> list[str]:
    """The names of the parameters that `load` gets wrong, compared with safetensors byte by byte."""
    model = TiedModel()
    load(model, stream(files, memory_limit=limit))
    return differing(read_files(files), model.tensors)


class NotesTies(TiedModel):
    """A model that notes which name was tied to which."""

    def __init__(self) -> None:
        super().__init__()
        self.ties: dict[str, str] = {}

    def tie(self, name: str, other: str) -> None:
        super().tie(name, other)
        self.ties[name] = other


def ties_for_real(files: list[Path], limit: int) -> dict[str, str]:
    """What `load_tied` ties to what, over the real streamer."""
    model = NotesTies()
    load_tied(model, stream(files, memory_limit=limit))
    return model.ties


def ties_by_plan(shards: list[list[TensorSpec]], limit: int) -> dict[str, str]:
    """The same from the plan of the buffer, for files without two equal tensors."""
    specs = {spec.name: spec for of_shard in shards for spec in of_shard}
    first: dict[tuple, str] = {}
    ties = {}
    for slot in plan(shards, limit).slots:
        spec = specs[slot.name]
        other = first.setdefault((spec.dtype, spec.shape, slot.start), slot.name)
        if other != slot.name:
            ties[slot.name] = other
    return ties


def read_files(files: list[Path]) -> dict[str, torch.Tensor]:
    """All tensors of some safetensors files, each in memory of its own."""
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@contextmanager
def written(*shards: dict[str, torch.Tensor]) -> Iterator[list[Path]]:
    """Write each dict into a safetensors file of a folder that is gone afterwards, and give their paths."""
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"model-{number:05}.safetensors" for number, _ in enumerate(shards, start=1)]
        for file, tensors in zip(files, shards, strict=True):
            save_file(tensors, file)
        yield files


def random_tensors(specs: list[TensorSpec], seed: int = 90) -> dict[str, torch.Tensor]:
    """Tensors of random bytes, so that no two of them are equal."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for spec in specs:
        raw = torch.randint(0, 256, (spec.nbytes,), dtype=torch.uint8, generator=random)
        tensors[spec.name] = raw.view(TORCH_DTYPES[spec.dtype]).reshape(spec.shape)
    return tensors


@dataclass(frozen=True)
class Load:
    """One load, and what it cost: the tensors that were held too long, and the most bytes beside the parameters at
    once, in tensors of the loader's own and in Python's objects.
    """

    model: TiedModel
    kept_too_long: list[str]
    tensor_bytes: int
    python_bytes: int


def watch(load: Callable, files: list[Path], limit: int) -> Load:
    """Load over the real streamer, and measure."""
    model, weights = TiedModel(), audit(stream(files, memory_limit=limit))
    beside = Beside(model)
    tracemalloc.start()
    try:
        with beside:
            load(model, weights)
        python_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Load(model, weights.report().names, beside.peak, python_bytes)


class Beside(TorchDispatchMode):
    """Counts the bytes of new tensors that are alive at once and are not parameters of the model.

    A parameter counts while it is made, and no longer once the model has it.
    """

    def __init__(self, model: TiedModel) -> None:
        super().__init__()
        self.model, self.peak = model, 0
        self.made: dict[int, tuple[weakref.ref, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operation imports the compiler, for seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = storages((args, kwargs))
        result = func(*args, **(kwargs or {}))
        new = [tensor.untyped_storage() for tensor in tensors_in(result)]
        new = [storage for storage in new if storage._cdata not in before]
        if new:
            self._count(new)
        return result

    def _count(self, new: list[torch.UntypedStorage]) -> None:
        parameters = storages(self.model.tensors)
        self.made.update({storage._cdata: (weakref.ref(storage), storage.nbytes()) for storage in new})
        alive = {key: pair for key, pair in self.made.items() if pair[0]() is not None}
        self.made = {key: pair for key, pair in alive.items() if key not in parameters}
        self.peak = max(self.peak, sum(size for _, size in self.made.values()))
