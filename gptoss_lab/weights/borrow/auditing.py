"""Who still holds storage that a later request has covered: intervals and weak references, no data read.

Put it around the streamer's own iterator, under whatever the loader wraps around that:

    weights = audit(streamer.get_tensors())
    load(model, weights)
    weights.report().require_none_kept()

What it reports is *held*, not read: a loader that keeps a view for its shape alone is reported too. What was read and
dropped within one step (a worker thread that is one tensor late) is not seen; `guard` and `prove` see that.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gptoss_lab.weights.borrow.lines import Line, running_line
from gptoss_lab.weights.borrow.tracking import Memory, Request, Tracker, View

Item = tuple[str, torch.Tensor]


class KeptTooLate(AssertionError):
    """Tensors were held while a later request was written over them."""


@dataclass(frozen=True)
class Kept:
    """One tensor that was held too long.

    `overwritten_by` are the tensors of `by_request`, the first request to cover it, that lie over it; none if the
    stream ended before they came. `advanced_at` is the line that asked for that request's first tensor. `still_held`
    tells whether its storage existed when the report was made.
    """

    name: str
    request: int
    by_request: int
    overwritten_by: tuple[str, ...]
    advanced_at: Line
    still_held: bool

    def __str__(self) -> str:
        by = ", ".join(map(repr, self.overwritten_by[:3])) or "tensors that were not asked for"
        more = f" and {len(self.overwritten_by) - 3} more" if len(self.overwritten_by) > 3 else ""
        return (
            f"{self.name!r} of request {self.request}: overwritten by {by}{more} of request {self.by_request}, "
            f"when the stream advanced at {self.advanced_at}"
        )


@dataclass(frozen=True)
class AuditReport:
    """What an audit saw. `guessed` counts tensors whose request was told by addresses, without the streamer."""

    tensors: int
    requests: int
    guessed: int
    kept: tuple[Kept, ...]

    @property
    def names(self) -> list[str]:
        """The names of the kept tensors, sorted."""
        return sorted(kept.name for kept in self.kept)

    def __str__(self) -> str:
        counts = f"{len(self.kept)} of {self.tensors} tensors ({self.requests} requests)"
        if not self.kept:
            return f"{counts} were held while a later request was written over them"
        lines = "\n".join(f"  {kept}" for kept in self.kept)
        return f"{counts} were held while a later request was written over them:\n{lines}"

    def require_none_kept(self) -> None:
        """Raise KeptTooLate, with the whole report, if a tensor was kept."""
        if self.kept:
            raise KeptTooLate(f"{self}\nCopy what has to wait when it arrives, or use it before the next one")


class Reference(Protocol):
    def expired(self) -> bool: ...


@dataclass(eq=False)
class Held:
    """A yielded tensor, as long as anything keeps its storage."""

    view: View
    reference: Reference


class ObjectReference:
    """Stands for a tensor whose storage is the whole buffer's, so that the storage's life tells nothing."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)

    def expired(self) -> bool:
        return self._tensor() is None


class Audit(Iterator[Item]):
    """The stream, unchanged, with a report of what was kept too long. Made by `audit`."""

    def __init__(self, stream: Iterable[Item]) -> None:
        self._stream = iter(stream)
        self._tracker = Tracker(self._stream)
        self._watched: dict[Memory, list[Held]] = {}
        self._previous: Held | None = None
        self._in_grace: tuple[Held, Request] | None = None
        self._suspects: dict[Memory, list[tuple[Held, Request]]] = {}
        self._kept: list[tuple[Held, Request]] = []

    def __next__(self) -> Item:
        line = running_line()
        try:
            item = next(self._stream)
        except StopIteration:
            self._end_grace()
            raise
        self._book(*item, line)
        return item

    def close(self) -> None:
        """End the stream, as the `close` of a generator does."""
        if hasattr(self._stream, "close"):
            self._stream.close()

    def report(self) -> AuditReport:
        """What was kept too long up to now. May be asked for at any time."""
        self._end_grace()
        pending = [pair for memory in self._suspects for pair in self._covered(memory)]
        kept = sorted(self._kept + pending, key=lambda pair: pair[0].view.step)
        return AuditReport(
            tensors=self._tracker.steps,
            requests=self._tracker.requests,
            guessed=self._tracker.guessed,
            kept=tuple(self._describe(held, request) for held, request in kept),
        )

    def _book(self, name: str, tensor: torch.Tensor, line: Line) -> None:
        view = self._tracker.book(name, tensor, line)
        self._end_grace()
        if view is None:
            return
        if len(view.request.views) == 1:
            self._recycle(view.request)
        held = Held(view, reference_to(tensor))
        self._watched.setdefault(view.request.memory, []).append(held)
        self._previous = held

    def _recycle(self, request: Request) -> None:
        """A new request has begun: whoever still holds a tensor of an earlier one is suspect.

        But for the tensor just before, which the loader's loop variable holds while it asks for the next one. That one
        has a step of grace.
        """
        memory = request.memory
        self._settle(memory)
        alive = [held for held in self._watched.get(memory, []) if not held.reference.expired()]
        if any(held is not self._previous for held in alive):
            gc.collect(1)  # what only a cycle holds, nobody will read
            alive = [held for held in alive if not held.reference.expired()]
        self._watched[memory] = alive
        for held in alive:
            if held is self._previous:
                self._in_grace = held, request
            else:
                self._suspect(held, request)

    def _end_grace(self) -> None:
        if self._in_grace is not None:
            held, request = self._in_grace
            self._in_grace = None
            if not held.reference.expired():
                gc.collect(1)
            if not held.reference.expired():
                self._suspect(held, request)

    def _suspect(self, held: Held, request: Request) -> None:
        self._suspects.setdefault(request.memory, []).append((held, request))

    def _settle(self, memory: Memory) -> None:
        """The last request is complete: its suspects were kept too long if it covers them, else they are free."""
        kept = self._covered(memory)
        self._suspects.pop(memory, None)
        self._kept += kept
        done = {id(held) for held, _ in kept}
        self._watched[memory] = [held for held in self._watched.get(memory, []) if id(held) not in done]

    def _covered(self, memory: Memory) -> list[tuple[Held, Request]]:
        return [(held, request) for held, request in self._suspects.get(memory, []) if request.covers(held.view)]

    def _describe(self, held: Held, request: Request) -> Kept:
        view = held.view
        return Kept(
            name=view.name,
            request=view.request.number,
            by_request=request.number,
            overwritten_by=tuple(other.name for other in request.over(view.start, view.stop)),
            advanced_at=request.advanced_at,
            still_held=not held.reference.expired(),
        )


def reference_to(tensor: torch.Tensor) -> Reference:
    """A weak reference that lives as long as anything that shares the tensor's storage."""
    storage = tensor.untyped_storage()
    return StorageWeakRef(storage) if storage.nbytes() == tensor.nbytes else ObjectReference(tensor)


def audit(stream: Iterable[Item]) -> Audit:
    """Follow what becomes of the tensors of a stream, and yield it unchanged.

    `stream` is any iterator of `(name, tensor)` over the Run:ai streamer: `streaming.stream`,
    `SafetensorsStreamer.get_tensors()`, or a loader's own generator around it. Call `report()` on the result when the
    load is done. A tensor counts as kept if anything that shares its storage (the tensor itself, a view, a
    `Parameter`, a NumPy array) exists when a later request covers it, one tensor after that request has begun.

    In a distributed stream all tensors share the storage of one buffer, so there a tensor is followed itself, and not
    what is derived from it.
    """
    return Audit(stream)
