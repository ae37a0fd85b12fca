"""Ownership decided by storage: a tensor is the stream's if its memory is, whatever became of its mark."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

Item = tuple[str, torch.Tensor]
MARK = "runai_streamed"  # streaming.STREAMED; this module imports no streamer


class Loan:
    """The memory of one stream's tensors: disjoint intervals of addresses, by device."""

    def __init__(self) -> None:
        self._starts: dict[torch.device, list[int]] = {}
        self._stops: dict[torch.device, list[int]] = {}
        self._storages: list[StorageWeakRef] = []
        self.open = True

    def add(self, tensor: torch.Tensor) -> None:
        """Book the memory of a tensor."""
        storage = tensor.untyped_storage()
        self._storages.append(StorageWeakRef(storage))
        start, stop = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        starts = self._starts.setdefault(tensor.device, [])
        stops = self._stops.setdefault(tensor.device, [])
        first, last = bisect_left(stops, start), bisect_right(starts, stop)
        if first < last:  # grow over what it touches
            start, stop = min(start, starts[first]), max(stop, stops[last - 1])
        starts[first:last], stops[first:last] = [start], [stop]

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Tell whether memory of this loan is in a storage. After the end of the stream, only while any is in use."""
        starts, stops = self._starts.get(storage.device, []), self._stops.get(storage.device, [])
        place = bisect_right(stops, storage.data_ptr())
        if place == len(starts) or starts[place] >= storage.data_ptr() + storage.nbytes():
            return False
        return self.open or self.in_use()

    def in_use(self) -> bool:
        """Tell whether any storage of this loan still exists. Afterwards its addresses may be anybody's."""
        return any(not reference.expired() for reference in self._storages)


_LOANS: weakref.WeakSet[Loan] = weakref.WeakSet()
_ENDED: list[Loan] = []  # keeps a loan while its stream is over and its memory may still be in use
_LOCK = threading.Lock()


def lend(stream: Iterable[Item]) -> Iterator[Item]:
    """Yield a stream unchanged, and book whose memory its tensors are, so that `own` can tell.

    One line at the source, in place of the mark: `for name, tensor in lend(streamer.get_tensors())`.
    """
    loan = Loan()
    with _LOCK:
        _LOANS.add(loan)
    try:
        yield from map(lambda item: _book(loan, item), stream)
    finally:
        loan.open = False
        with _LOCK:
            _ENDED[:] = [ended for ended in [*_ENDED, loan] if ended.in_use()]


def _book(loan: Loan, item: Item) -> Item:
    if item[1].nbytes:
        loan.add(item[1])
    return item


def is_lent(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's memory is that of a stream under `lend`, however the tensor was made from it."""
    if not tensor.nbytes:
        return False
    storage = tensor.untyped_storage()
    with _LOCK:
        loans = list(_LOANS)
    return any(loan.holds(storage) for loan in loans)


def own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that no stream can change: a host copy if its memory is lent, else the same object.

    Goes by the memory, so it is right after `view`, `narrow`, `detach`, `.data`, `Parameter`, and after a round trip
    through NumPy. A tensor with the streamer's mark is copied too, so this never owns less than the helper of SGLang's
    pull request 38908, from which it differs in that alone. The copy is a plain tensor in host memory, where a model
    that is still being loaded has room.
    """
    if getattr(tensor, MARK, False) or is_lent(tensor):
        return tensor.detach().to("cpu", copy=True)
    return tensor
