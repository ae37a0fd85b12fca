"""Which request a yielded tensor belongs to, and what each request covers, learned from the stream itself.

There are two ways to know. Where the streamer can be found behind the iterator, it is asked: it holds the buffer and
the request that is being yielded, so the first tensor of a request tells how far the whole request reaches, whatever
the order of its tensors. Elsewhere (other releases, a distributed stream) addresses tell: a request's tensors lie side
by side, so a tensor on top of one of them belongs to a new request. How far that one reaches is then known only as
its tensors arrive.
"""

from __future__ import annotations

import gc
import sys
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from gptoss_lab.weights.borrow.lines import Line, running_line

STREAMER_MODULE = "runai_model_streamer.file_streamer.file_streamer"
MOST_OBJECTS = 20_000  # looked at in one search for the streamer
OPAQUE = (ModuleType, type, CodeType, FrameType, torch.Tensor, str, bytes, int, float, type(None))


@dataclass(eq=False, slots=True)  # one for each tensor, made while the caches are full of weights: keep it cheap
class View:
    """A yielded tensor's place: the bytes [start, stop) of one stretch of memory, filled by one request.

    `start` and `stop` are addresses. `step` counts the tensors of the stream from 0, `request` the requests.
    """

    name: str
    step: int
    request: Request
    start: int
    stop: int


@dataclass(eq=False)
class Request:
    """One filling of the buffer. `reach` is (start, stop) if it is known before all its tensors have come."""

    number: int
    memory: Memory
    advanced_at: Line
    reach: tuple[int, int] | None = None
    views: list[View] = field(default_factory=list)  # by address, disjoint
    _starts: list[int] = field(default_factory=list)

    def add(self, view: View) -> None:
        """Book a view of this request."""
        place = bisect_left(self._starts, view.start)
        self._starts.insert(place, view.start)
        self.views.insert(place, view)

    def over(self, start: int, stop: int) -> list[View]:
        """The views of this request, as far as they have come, that overlap [start, stop)."""
        first = max(0, bisect_right(self._starts, start) - 1)
        last = bisect_left(self._starts, stop)
        return [view for view in self.views[first:last] if view.start < stop and start < view.stop]

    def covers(self, view: View) -> bool:
        """Tell whether this request writes over `view`, as far as that is known."""
        if self.reach is None:
            return bool(self.over(view.start, view.stop))
        return view.start < self.reach[1] and self.reach[0] < view.stop


@dataclass(eq=False)
class Memory:
    """A stretch of memory that is filled again and again: its requests, first to last."""

    requests: list[Request] = field(default_factory=list)

    def since(self, view: View) -> list[Request]:
        """The requests after the view's own."""
        first = bisect_right(self.requests, view.request.number, key=lambda request: request.number)
        return self.requests[first:]


class Tracker:
    """Follows one stream. `book` is called for each tensor, in the order of the stream, before it is used."""

    def __init__(self, stream: Iterable[Any]) -> None:
        self.steps = 0  # tensors so far
        self.requests = 0
        self.guessed = 0  # tensors whose request was told by their address alone
        self._memories: dict[Hashable, Memory] = {}
        self._source = Source(stream)
        self._active: Any = None  # the streamer's request that its last tensor belonged to
        self._running: Request  # and what was booked for it

    def book(self, name: str, tensor: torch.Tensor) -> View | None:
        """Say where a tensor lies and to which request it belongs; None if it cannot be overwritten.

        That is so for tensors without bytes, and for those that have torch's own memory to themselves.
        """
        step, self.steps = self.steps, self.steps + 1
        start, nbytes = tensor.data_ptr(), tensor.nbytes
        if not nbytes:
            return None
        active = self._source.request_at(start, step)
        if active is not None:
            request = self._told(active)
        else:
            storage = tensor.untyped_storage()
            alone = storage.nbytes() == nbytes
            if alone and storage.resizable():  # an allocation of torch's: a copy, not a view of somebody's buffer
                return None
            self.guessed += 1
            # Views that share one storage lie in one buffer; else all of a device's memory counts as one.
            key = tensor.device, None if alone else storage.data_ptr()
            request = self._guess(key, start, start + nbytes)
        view = View(name, step, request, start, start + nbytes)
        request.add(view)
        return view

    def _told(self, active: Any) -> Request:
        if active is self._active:
            return self._running
        first = self._source.first
        reach = first, first + sum(sum(file.chunks) for file in active.files)
        self._active = active
        self._running = self._begin(("buffer", first), reach)
        return self._running

    def _guess(self, key: Hashable, start: int, stop: int) -> Request:
        memory = self._memories.get(key)
        if memory is None or memory.requests[-1].over(start, stop):
            return self._begin(key, None)
        return memory.requests[-1]

    def _begin(self, key: Hashable, reach: tuple[int, int] | None) -> Request:
        memory = self._memories.setdefault(key, Memory())
        request = Request(self.requests, memory, running_line(), reach)
        self.requests += 1
        memory.requests.append(request)
        return request


class Source:
    """The Run:ai streamer behind an iterator, if it is there, asked for its buffer and its running request.

    It is held weakly: keeping it would keep the buffer. It does not exist before the first tensor, so it is looked
    for when the first one has come, and again, ever more rarely, while tensors come that are not its own.
    """

    def __init__(self, stream: Iterable[Any]) -> None:
        self.first = self.stop = 0  # the addresses of its buffer
        self._stream = stream
        self._streamer: Callable[[], Any] = nothing
        self._iterator: Callable[[], Any] = nothing  # of its requests; the buffer is this one's
        self._search_at = 0

    def request_at(self, address: int, step: int) -> Any | None:
        """The streamer's running request, if `address` lies in its buffer."""
        streamer = self._streamer()
        if streamer is not None and (
            self.first <= address < self.stop
            and streamer.requests_iterator is self._iterator()
            or self._look(streamer, address)
        ):
            return streamer.active_request
        if step < self._search_at:
            return None
        self._search_at = 2 * step + 1
        streamer = find_streamer(self._stream)
        if streamer is None or not self._look(streamer, address):
            return None
        self._streamer = weakref.ref(streamer)
        return streamer.active_request

    def _look(self, streamer: Any, address: int) -> bool:
        """Read where the buffer lies; tell whether `address` is in it."""
        try:
            iterator = streamer.requests_iterator
            self.first = iterator.buffer.__array_interface__["data"][0]
            self.stop = self.first + iterator.buffer.nbytes
            self._iterator = weakref.ref(iterator)
        except AttributeError:  # a release that is made otherwise
            return False
        return self.first <= address < self.stop


def nothing() -> None:
    """Stands for a weak reference to what is not there."""


def find_streamer(stream: Any) -> Any | None:
    """Find the Run:ai `FileStreamer` that feeds an iterator, through generators, `map`, tqdm and the like.

    Looks at what the garbage collector says each object refers to, so it sees the local variables of generators that
    wait. Functions are entered by their closures alone, modules, classes and tensors not at all.
    """
    kind = getattr(sys.modules.get(STREAMER_MODULE), "FileStreamer", None)
    if kind is None:
        return None
    queue, seen = deque([stream]), {id(stream)}
    while queue and len(seen) < MOST_OBJECTS:
        thing = queue.popleft()
        if isinstance(thing, kind) and getattr(thing, "active_request", None) is not None:
            return thing
        inside = thing.__closure__ or () if isinstance(thing, FunctionType) else gc.get_referents(thing)
        for part in inside:
            if id(part) not in seen and not isinstance(part, OPAQUE):
                seen.add(id(part))
                queue.append(part)
    return None
