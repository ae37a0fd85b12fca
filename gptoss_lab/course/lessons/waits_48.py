"""The nine launches of `reuse(topk(logits, k), n_experts)`, and which of them reads what another wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gptoss_lab.course.lessons.lesson_42 import METADATA, TAIL

NINE = ["_topk_forward", *METADATA, *TAIL]


@dataclass(frozen=True)
class Wait:
    """Launch `reader` reads `what`, which launch `writer` wrote. Launches are numbered from 1, as they come."""

    writer: int
    reader: int
    what: str


WAITS = (
    Wait(1, 3, "bits"),
    Wait(2, 3, "zeros"),
    Wait(3, 4, "sizes"),
    Wait(1, 5, "ids"),
    Wait(4, 5, "first rows"),
    Wait(3, 6, "sizes"),
    Wait(3, 7, "sizes"),
    Wait(6, 7, "starts"),
    Wait(5, 8, "combine"),
    Wait(1, 9, "weights"),
    Wait(8, 9, "int64 copy"),
)


def find_levels(waits: Sequence[Wait], launches: int) -> list[int]:
    """Return for each launch how many must come before it, one after the other.

    The waits lead from a smaller number to a larger one.
    """
    levels = [0] * (launches + 1)
    for wait in sorted(waits, key=lambda wait: wait.reader):
        levels[wait.reader] = max(levels[wait.reader], levels[wait.writer] + 1)
    return levels[1:]


def find_longest_chain(waits: Sequence[Wait], launches: int) -> list[int]:
    """Return the numbers of the longest run of launches each of which waits for the one before it."""
    levels = find_levels(waits, launches)
    chain = [levels.index(max(levels)) + 1]
    while level := levels[chain[0] - 1]:
        before = (w.writer for w in waits if w.reader == chain[0] and levels[w.writer - 1] == level - 1)
        chain.insert(0, next(before))
    return chain
