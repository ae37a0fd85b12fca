"""A detector of views that are kept too long, small enough to write in an exercise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gptoss_lab.weights.plan import Plan


def watch(
    weights: Iterable[tuple[str, torch.Tensor]], layout: Plan, kept: set[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a stream unchanged; add to `kept` each name whose storage is held when a later request has covered it.

    The tensor just before is not looked at until one step later: the loader's loop variable holds it. `borrow.audit`
    does the same without the plan, and tells what a variable holds from what something lasting holds.
    """
    watched: list[tuple[str, StorageWeakRef]] = []

    def look(request: int) -> None:
        for name, storage in watched[:-1]:
            if not storage.expired() and any(slot.request <= request for slot in layout.overwriters(name)):
                kept.add(name)

    request = 0
    for name, tensor in weights:
        request = layout.slot(name).request
        look(request)
        watched.append((name, StorageWeakRef(tensor.untyped_storage())))
        yield name, tensor
    look(request)
