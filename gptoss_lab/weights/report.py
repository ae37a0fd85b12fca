"""What a load did: in which order, with how many tensors alive at once, and how many bytes copied where.

The counts are exact, not read from the operating system: each tensor that the stream produces is followed by
a weak reference to its storage, and each copy passes through the recorder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

Weights = Iterable[tuple[str, torch.Tensor]]


class LoadError(ValueError):
    """Names that do not fit the model: refused before the first tensor where the headers were given."""


class IncompleteLoad(LoadError):
    """A load that ended without an error of its own and left tensors out."""


class Target(Protocol):
    """What a strategy needs of a model; `model.GptOss` has it."""

    names: tuple[str, ...]

    def copy_in(self, name: str, tensor: torch.Tensor) -> None: ...

    def mark_unusable(self, reason: str) -> None: ...


@dataclass(frozen=True)
class LoadReport:
    """One load. A *view* is a tensor as the stream gave it, a *copy* one that the loader made for itself.

    `order` is the order in which tensors were copied into parameters, and `produced_when_seen` how many the
    stream had produced by then. The peaks are taken whenever a tensor is produced or copied; they count by
    storage, so a derived view counts as the view that it comes from, and the loop variable counts too: a
    loader that keeps nothing has a peak of 2 views, the one it just handled and the one that arrives.
    """

    strategy: str
    produced: int
    order: tuple[str, ...]
    produced_when_seen: dict[str, int]
    peak_views: int
    peak_view_bytes: int
    peak_copies: int
    peak_copy_bytes: int
    peak_live_tensors: int
    peak_live_bytes: int
    bytes_to_host: int
    bytes_on_device: int
    bytes_to_parameters: int


class Alive:
    """Tensors whose storage still exists."""

    def __init__(self) -> None:
        self._tensors: list[tuple[StorageWeakRef, int]] = []
        self.peak_count = self.peak_bytes = 0

    def add(self, tensor: torch.Tensor) -> None:
        self._tensors.append((StorageWeakRef(tensor.untyped_storage()), tensor.nbytes))

    def count(self) -> tuple[int, int]:
        """How many there are, and their bytes. Remembers the highest of each."""
        self._tensors = [(storage, size) for storage, size in self._tensors if not storage.expired()]
        count, size = len(self._tensors), sum(size for _, size in self._tensors)
        self.peak_count, self.peak_bytes = max(self.peak_count, count), max(self.peak_bytes, size)
        return count, size


class Recorder:
    """Stands between a strategy and its model: gives it the weights, takes its tensors, and counts.

    `weights` replaces the stream and `copy_in` the model's, so the halves of a loader take it for the model.
    """

    def __init__(self, strategy: str, model: Target, weights: Weights, names: Collection[str] | None) -> None:
        self.strategy, self.model = strategy, model
        self.source = iter(weights)
        self.known = frozenset(names if names is not None else getattr(model, "names", ()))
        self.weights = self._watch()
        self.exhausted = False
        self.produced: dict[str, None] = {}  # in the order of the stream
        self.seen: dict[str, int] = {}
        self.views, self.copies = Alive(), Alive()
        self.peak_live_tensors = self.peak_live_bytes = 0
        self.copied = {"host": 0, "device": 0, "parameters": 0}

    def _watch(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from map(self._produce, self.source)
        self.exhausted = True

    def _produce(self, item: tuple[str, torch.Tensor]) -> tuple[str, torch.Tensor]:
        name, tensor = item
        if name in self.produced:
            raise LoadError(f"tensor {name!r} came twice: stream each file once, and only those of the index")
        if self.known and name not in self.known:
            raise LoadError(f"tensor {name!r} is unknown to the model: load the checkpoint with its own config")
        self.produced[name] = None
        self.views.add(tensor)
        self._measure()
        return item

    def keep(self, tensor: torch.Tensor, kept: torch.Tensor, where: Literal["host", "device"]) -> torch.Tensor:
        """Count `kept`, which a strategy will hold in place of `tensor`. The same storage is no copy."""
        if kept.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
            self.copied[where] += kept.nbytes
            self.copies.add(kept)
            self._measure()
        return kept

    def copy_in(self, name: str, tensor: torch.Tensor) -> None:
        """Copy a tensor into its parameter, and note how many tensors the stream had produced by then."""
        self.model.copy_in(name, tensor)
        self.seen[name] = len(self.produced)
        self.copied["parameters"] += tensor.nbytes

    def _measure(self) -> None:
        views, view_bytes = self.views.count()
        copies, copy_bytes = self.copies.count()
        self.peak_live_tensors = max(self.peak_live_tensors, views + copies)
        self.peak_live_bytes = max(self.peak_live_bytes, view_bytes + copy_bytes)

    def require_complete(self) -> None:
        """Raise IncompleteLoad if a tensor was left out, or if nobody read the stream to its end."""
        missing = sorted(self.known - self.seen.keys())
        if missing:
            raise IncompleteLoad(
                f"{len(missing)} of {len(self.known)} tensors were not loaded: {_some(missing)}. The stream "
                f"produced {len(self.produced)}: look for a `break` or `return` in the half that reads it"
            )
        if not self.exhausted and next(self.source, None) is not None:
            raise IncompleteLoad(
                f"the stream was not read to its end: {len(self.produced)} tensors were produced, the last "
                f"of them {_some(list(self.produced)[-1:])}: look for a `break` or `return` in the half that "
                "reads it"
            )

    def report(self) -> LoadReport:
        """The report of what happened so far."""
        return LoadReport(
            strategy=self.strategy,
            produced=len(self.produced),
            order=tuple(self.seen),
            produced_when_seen=dict(self.seen),
            peak_views=self.views.peak_count,
            peak_view_bytes=self.views.peak_bytes,
            peak_copies=self.copies.peak_count,
            peak_copy_bytes=self.copies.peak_bytes,
            peak_live_tensors=self.peak_live_tensors,
            peak_live_bytes=self.peak_live_bytes,
            bytes_to_host=self.copied["host"],
            bytes_on_device=self.copied["device"],
            bytes_to_parameters=self.copied["parameters"],
        )


@contextmanager
def record(strategy: str, model: Target, weights: Weights, names: Iterable[str] | None) -> Iterator[Recorder]:
    """Check the names, record the load, and see that it is complete.

    Whatever ends the load early marks the model as not usable, with the reason, since some of its parameters
    then hold bytes of the checkpoint and others do not.
    """
    names = None if names is None else list(names)
    check_names(model, names)
    recorder = Recorder(strategy, model, weights, names)
    try:
        yield recorder
        recorder.require_complete()
    except BaseException as error:
        if hasattr(model, "mark_unusable"):
            done = f"{strategy} broke off after {len(recorder.seen)} tensors"
            model.mark_unusable(f"{done} ({type(error).__name__}: {error})")
        raise
    finally:
        if hasattr(recorder.source, "close"):
            recorder.source.close()  # an early end must not leave the streamer's threads running


def check_names(model: Target, names: list[str] | None) -> None:
    """Hold the names of a checkpoint's headers against the model's, before a tensor is read.

    Raises:
        LoadError: a name twice, a name that the model does not know, or one that it misses.
    """
    if names is None:
        return
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise LoadError(f"tensor {_some(twice)} is in the headers twice: leave out files that the index does not name")
    known = getattr(model, "names", None)
    if known is None:
        return
    unknown = sorted(set(names) - set(known))
    missing = sorted(set(known) - set(names))
    if unknown or missing:
        faults = [f"{len(unknown)} unknown to the model: {_some(unknown)}"] if unknown else []
        faults += [f"{len(missing)} that the model needs are missing: {_some(missing)}"] if missing else []
        raise LoadError(f"tensors of the headers: {'; '.join(faults)}. Load the checkpoint with its own config.json")


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
