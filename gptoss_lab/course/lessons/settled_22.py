"""A stream whose late reads have one outcome, so that a test of a loader need not be lucky."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

import torch

from gptoss_lab.weights.plan import Plan

Item = tuple[str, torch.Tensor]


def settled(weights: Iterable[Item], layout: Plan) -> Iterator[Item]:
    """Yield a stream unchanged, but take each request as a whole before its first tensor is handed on.

    While a request is on its way, a view of an earlier one holds old bytes, new ones, or some of each. When all
    tensors of the request have come, all of it is written, and a late read finds the new bytes, each time. Within its
    request every view is good, so waiting breaks no promise. `layout` is the plan of the same files and limit.
    """
    weights = iter(weights)
    for request in layout.requests:
        waiting = deque(islice(weights, len(request)))
        while waiting:
            yield waiting.popleft()
    yield from weights  # nothing is left, but asking ends the stream
