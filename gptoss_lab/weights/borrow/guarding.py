"""Tensors that refuse to be used after the streamer has taken their memory back.

    for name, tensor in guard(streamer.get_tensors()):
        ...

What shares a yielded tensor's storage (views, `detach`, `Parameter`) stays guarded; what does not (`clone`,
`to(copy=True)`, a parameter after `copy_`, any arithmetic) is a plain tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from gptoss_lab.weights.borrow.lines import Line, running_line
from gptoss_lab.weights.borrow.tracking import Request, Tracker, View

Item = tuple[str, torch.Tensor]

# Questions about a tensor that read none of its bytes, and so are answered at any time.
METADATA = frozenset(
    "size dim ndimension numel nelement stride storage_offset element_size is_contiguous is_floating_point is_complex "
    "is_signed is_same_size is_shared is_pinned is_conj is_neg is_inference has_names get_device data_ptr __len__ "
    "__hash__ untyped_storage empty_like zeros_like ones_like full_like rand_like randn_like new_empty new_zeros "
    "new_ones new_full __set__".split()
)
# Ways out of the subclass: from there on nobody could tell that the bytes are borrowed.
WAYS_OUT = frozenset("numpy __array__ __dlpack__ storage typed_storage _typed_storage share_memory_".split())
# These make their own copy, and need a plain tensor to do it.
COPIERS = frozenset(["__deepcopy__", "__reduce_ex__"])


class StaleViewError(RuntimeError):
    """A tensor was used after its memory was taken back.

    `name` is the tensor, `overwritten_by` the one that lies in its place (the first of its request, if that is all
    that is known), `yielded_at` and `used_at` are lines of code.
    """

    def __init__(self, name: str, overwritten_by: str, yielded_at: Line, used_at: Line, what: str) -> None:
        self.name, self.overwritten_by = name, overwritten_by
        self.yielded_at, self.used_at = yielded_at, used_at
        super().__init__(
            f"tensor {name!r} {what}. It was yielded at {yielded_at}, and used at {used_at}: copy it before the "
            "stream moves on"
        )


class LeavesGuard(RuntimeError):
    """A tensor was to leave the guard by a way on which it could not be followed, such as `numpy()`."""


class Borrow:
    """What a guarded tensor and all that shares its storage know: whose it is, and since when."""

    def __init__(self, guard: Guard, name: str, view: View | None, yielded_at: Line) -> None:
        self.guard, self.name, self.view, self.yielded_at = guard, name, view, yielded_at
        self.turn = guard.turn

    def require_fresh(self, use: str) -> None:
        """Raise StaleViewError if the memory was taken back."""
        if self.view is None or self.turn == self.guard.turn:
            return
        if self.guard.strict:
            raise self._error(self.guard.in_hand, f"is used ({use}) after the stream moved on", "in hand now is")
        request = self.overwriting_request()
        if request is not None:
            raise self.overwritten_error(request, f"is used too late ({use})")

    def overwriting_request(self) -> Request | None:
        """The first later request that covers it; where that is not known, the first one at all."""
        for request in self.view.request.memory.since(self.view):
            if request.reach is None or request.covers(self.view):
                return request
        return None

    def overwritten_error(self, request: Request, what: str) -> StaleViewError:
        """The error that names the tensor on top, or the first of the request if that one has not come."""
        over = request.over(self.view.start, self.view.stop) or request.views[:1]
        return self._error(over[0].name, what, f"request {request.number} has overwritten it, with")

    def _error(self, other: str, what: str, how: str) -> StaleViewError:
        return StaleViewError(self.name, other, self.yielded_at, running_line(), f"{what}: {how} {other!r}")


class Borrowed(torch.Tensor):
    """A tensor that knows its request. Made by `guard`."""

    _borrow: Borrow

    def as_subclass(self, cls: type) -> torch.Tensor:
        """Refused: torch does not ask about it, and it would give a plain view."""
        self._borrow.require_fresh("as_subclass")
        raise LeavesGuard(way_out_message(self._borrow.name, f"as_subclass({cls.__name__})"))

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Iterable[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            name = func.__name__
            if name in METADATA:
                return func(*args, **kwargs)
            inputs = list(borrowed_in((args, kwargs)))
            if name == "__get__":  # of an attribute: `shape` is plain, `data` and `T` are tensors
                result = func(*args, **kwargs)
                if isinstance(result, torch.Tensor):
                    require_fresh(inputs, func.__self__.__name__)
                return keep_guarded(result, inputs)
            if name == "__repr__":
                return describe(args[0], func)
            require_fresh(inputs, name)
            if name in WAYS_OUT:
                raise LeavesGuard(way_out_message(inputs[0]._borrow.name, name))
            if name in COPIERS:
                return func(torch.Tensor.as_subclass(args[0], torch.Tensor), *args[1:], **kwargs)
            with reading(inputs):
                return keep_guarded(func(*args, **kwargs), inputs)


class Guard(Iterator[Item]):
    """The stream with guarded tensors. Made by `guard`."""

    def __init__(self, stream: Iterable[Item], strict: bool) -> None:
        self.strict = strict
        self.turn = 0  # how often the stream was asked to advance
        self.in_hand = "nothing"  # the last tensor's name
        self.readers: dict[int, list[Borrow]] = {}  # by thread, what it is reading now
        self._stream = iter(stream)
        self._tracker = Tracker(self._stream)

    def __next__(self) -> Item:
        line = running_line()
        reads = self._running_reads()
        if self.strict and reads:
            raise reads[0]._error(self.in_hand, "is being read by another thread", "the stream advances behind")
        self.turn += 1
        name, tensor = next(self._stream)
        view = self._tracker.book(name, tensor)
        self.in_hand = name
        for borrow in reads:
            request = borrow.overwriting_request()
            if request is not None:
                raise borrow.overwritten_error(request, "was being read by another thread")
        return name, lend_out(tensor, Borrow(self, name, view, line))

    def close(self) -> None:
        """End the stream, as the `close` of a generator does."""
        if hasattr(self._stream, "close"):
            self._stream.close()

    def _running_reads(self) -> list[Borrow]:
        me = threading.get_ident()
        others = [borrows for thread, borrows in list(self.readers.items()) if thread != me]
        return [borrow for borrows in others for borrow in borrows if borrow.view is not None]


class reading:
    """While entered, the guard knows that this thread reads these tensors."""

    def __init__(self, inputs: list[Borrowed]) -> None:
        self._borrows = [tensor._borrow for tensor in inputs]
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        for borrow in self._borrows:
            borrow.guard.readers.setdefault(self._thread, []).append(borrow)

    def __exit__(self, *_: object) -> None:
        for borrow in self._borrows:
            borrow.guard.readers.pop(self._thread, None)


def lend_out(tensor: torch.Tensor, borrow: Borrow) -> Borrowed:
    """The same tensor as a `Borrowed`, with its attributes (the streamer's mark is one)."""
    borrowed = tensor.as_subclass(Borrowed)
    vars(borrowed).update(vars(tensor))
    borrowed._borrow = borrow
    return borrowed


def borrowed_in(value: Any) -> Iterator[Borrowed]:
    """All guarded tensors among the arguments of a call."""
    if isinstance(value, Borrowed):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from borrowed_in(part)
    elif isinstance(value, dict):
        yield from borrowed_in(list(value.values()))


def require_fresh(inputs: Iterable[Borrowed], use: str) -> None:
    """Raise StaleViewError for the first tensor whose memory was taken back."""
    for tensor in inputs:
        tensor._borrow.require_fresh(use)


def keep_guarded(result: Any, inputs: list[Borrowed]) -> Any:
    """Guard those results that share the storage of an input; all others are plain."""
    if type(result) in (list, tuple):  # of `split`, say; not a `torch.Size`
        return type(result)(keep_guarded(part, inputs) for part in result)
    if not isinstance(result, torch.Tensor) or isinstance(result, Borrowed) and hasattr(result, "_borrow"):
        return result
    mine = result.untyped_storage()._cdata
    for tensor in inputs:
        if tensor.untyped_storage()._cdata == mine:
            guarded = result.as_subclass(Borrowed)
            guarded._borrow = tensor._borrow
            return guarded
    return result


def describe(tensor: Borrowed, show: Callable) -> str:
    """What `repr` shows; a debugger or a failed assertion may ask for it at any time."""
    try:
        tensor._borrow.require_fresh("repr")
    except StaleViewError:
        return f"<stale view of {tensor._borrow.name!r}>"
    return show(tensor)


def way_out_message(name: str, way: str) -> str:
    """Says which way out was refused, and what to do."""
    return (
        f"tensor {name!r} would leave the guard by {way.strip('_')}, and what is read from there on cannot be "
        f"checked: copy it first (`.clone()`), or use audit or prove, which follow it"
    )


def guard(stream: Iterable[Item], strict: bool = False) -> Guard:
    """Yield the tensors of a stream as ones that raise StaleViewError at their first use after they were recycled.

    A use is any operation but a question about shape, dtype, strides or place. `strict` makes a tensor stale when the
    stream is next asked to advance, though the contract allows its use until its request ends: that finds loaders
    that hand tensors to threads, whose late reads come at another moment each time.

    Raises while in use:
        StaleViewError: see there. Also from `next()` itself, if another thread is in the middle of a read.
        LeavesGuard: `numpy()`, `np.asarray`, `from_dlpack`, `storage()`, `as_subclass` and `share_memory_`, which would
            take a tensor out of the guard. Not followed, since torch does not ask: `parameter.data = t`,
            `other.set_(t)`, `Tensor._make_subclass(cls, t)`, `torch.utils.dlpack.to_dlpack(t)`; and what is read
            through `untyped_storage()` and `data_ptr()`, which loaders use to tell tensors apart.
    """
    return Guard(stream, strict)
