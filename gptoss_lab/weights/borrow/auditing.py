"""Who still holds storage that a later request has covered: intervals and weak references, no data read.

Put it around the streamer's own iterator, under whatever the loader wraps around that:

    weights = audit(streamer.get_tensors())
    load(model, weights)
    weights.report().require_none_kept()

What it reports is *held*, not read: a loader that keeps a view for its shape alone is reported too. What was read and
dropped within one step (a worker thread that is one tensor late) is not seen, and what only a variable holds is
reported apart, since it may never be read; `guard` and `prove` see who reads.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from gptoss_lab.weights.borrow.holders import Reference
from gptoss_lab.weights.borrow.lines import Line
from gptoss_lab.weights.borrow.tracking import Memory, Request, Tracker, View

Item = tuple[str, torch.Tensor]


class KeptTooLate(AssertionError):
    """Tensors were held while a later request was written over them."""


@dataclass(frozen=True)
class Kept:
    """One tensor that was held too long.

    `overwritten_by` are the tensors of `by_request`, the first request to cover it, that lie over it; none if the
    stream ended before they came. `advanced_at` is the line that asked for that request's first tensor. `variable`
    is the one that held it, if nothing else did. `still_held` tells whether its storage existed when the report was
    made.
    """

    name: str
    request: int
    by_request: int
    overwritten_by: tuple[str, ...]
    advanced_at: Line
    variable: str | None
    still_held: bool

    def __str__(self) -> str:
        by = ", ".join(map(repr, self.overwritten_by[:3])) or "tensors that were not asked for"
        more = f" and {len(self.overwritten_by) - 3} more" if len(self.overwritten_by) > 3 else ""
        holder = f" (in the variable {self.variable})" if self.variable else ""
        return (
            f"{self.name!r} of request {self.request}{holder}: overwritten by {by}{more} of request "
            f"{self.by_request}, when the stream advanced at {self.advanced_at}"
        )


@dataclass(frozen=True)
class AuditReport:
    """What an audit saw.

    `kept` are the tensors that something lasting held: a list, an attribute, a closure, a view, an array. Those in
    `in_variables` were held by variables of running code alone, which may be a loop variable that waits for its next
    value: a fault only if it is read again. `guessed` counts tensors whose request was told by addresses, without the
    streamer.
    """

    tensors: int
    requests: int
    guessed: int
    kept: tuple[Kept, ...]
    in_variables: tuple[Kept, ...]

    @property
    def names(self) -> list[str]:
        """The names of the kept tensors, sorted."""
        return sorted(kept.name for kept in self.kept)

    def __str__(self) -> str:
        said = [f"{len(self.kept)} of {self.tensors} tensors ({self.requests} requests) were kept and overwritten"]
        said += [f"  {kept}" for kept in self.kept]
        if self.in_variables:
            said.append(f"{len(self.in_variables)} more stayed in variables; wrong only if they were read again:")
            said += [f"  {kept}" for kept in self.in_variables]
        return "\n".join(said)

    def require_none_kept(self) -> None:
        """Raise KeptTooLate, with the whole report, if a tensor was kept."""
        if self.kept:
            raise KeptTooLate(f"{self}\nCopy what has to wait when it arrives, or use it before the next one")


@dataclass(eq=False, slots=True)
class Held:
    """A yielded tensor, as long as anything keeps its storage."""

    view: View
    reference: Reference


@dataclass(eq=False)
class Suspect:
    """A tensor that was alive when a request began; `variable` holds it, or something that lasts if None."""

    held: Held
    request: Request
    variable: str | None


class Audit(Iterator[Item]):
    """The stream, unchanged, with a report of what was kept too long. Made by `audit`."""

    def __init__(self, stream: Iterable[Item]) -> None:
        self._stream = iter(stream)
        self._tracker = Tracker(self._stream)
        self._watched: dict[Memory, list[Held]] = {}
        self._previous: Held | None = None
        self._in_grace: tuple[Held, Request] | None = None
        self._suspects: dict[Memory, list[Suspect]] = {}
        self._found: list[Suspect] = []

    def __next__(self) -> Item:
        try:
            item = next(self._stream)
        except StopIteration:
            self._end_grace()
            raise
        self._book(*item)
        return item

    def close(self) -> None:
        """End the stream, as the `close` of a generator does."""
        if hasattr(self._stream, "close"):
            self._stream.close()

    def report(self) -> AuditReport:
        """What was kept too long up to now. May be asked for at any time."""
        self._end_grace()
        pending = [suspect for memory in self._suspects for suspect in self._covered(memory)]
        found = sorted(self._found + pending, key=lambda suspect: suspect.held.view.step)
        kept = {suspect.held: suspect for suspect in reversed(found) if suspect.variable is None}  # the first of each
        lingering = {suspect.held: suspect for suspect in reversed(found) if suspect.held not in kept}
        return AuditReport(
            tensors=self._tracker.steps,
            requests=self._tracker.requests,
            guessed=self._tracker.guessed,
            kept=tuple(map(describe, reversed(kept.values()))),
            in_variables=tuple(map(describe, reversed(lingering.values()))),
        )

    def _book(self, name: str, tensor: torch.Tensor) -> None:
        view = self._tracker.book(name, tensor)
        self._end_grace()
        if view is None:
            return
        if len(view.request.views) == 1:
            self._recycle(view.request)
        held = Held(view, Reference(tensor))
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
        suspect = Suspect(held, request, held.reference.variable())
        self._suspects.setdefault(request.memory, []).append(suspect)

    def _settle(self, memory: Memory) -> None:
        """The last request is complete: what it covers and something lasting holds is found, once and for all."""
        found = self._covered(memory)
        self._suspects.pop(memory, None)
        self._found += found
        done = {suspect.held for suspect in found if suspect.variable is None}
        self._watched[memory] = [held for held in self._watched.get(memory, []) if held not in done]

    def _covered(self, memory: Memory) -> list[Suspect]:
        return [suspect for suspect in self._suspects.get(memory, []) if suspect.request.covers(suspect.held.view)]


def describe(suspect: Suspect) -> Kept:
    """A suspect in words."""
    view, request = suspect.held.view, suspect.request
    return Kept(
        name=view.name,
        request=view.request.number,
        by_request=request.number,
        overwritten_by=tuple(other.name for other in request.over(view.start, view.stop)),
        advanced_at=request.advanced_at,
        variable=suspect.variable,
        still_held=not suspect.held.reference.expired(),
    )


def audit(stream: Iterable[Item]) -> Audit:
    """Follow what becomes of the tensors of a stream, and yield it unchanged.

    `stream` is any iterator of `(name, tensor)` over the Run:ai streamer: `streaming.stream`,
    `SafetensorsStreamer.get_tensors()`, or a loader's own generator around it. Call `report()` on the result when the
    load is done. A tensor counts as kept if anything that shares its storage (the tensor itself, a view, a
    `Parameter`, a NumPy array) is held, and not by variables alone, when a later request covers it. The last tensor
    before that request may be held for one step more, since the loader's loop variable does so.

    In a distributed stream all tensors share the storage of one buffer, so there a tensor is followed itself, and not
    what is derived from it.
    """
    return Audit(stream)
