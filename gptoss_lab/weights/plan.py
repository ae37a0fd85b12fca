"""The plan of the staging buffer: where each tensor will lie, and who overwrites it, before a byte is read.

The Run:ai streamer (up to 0.16.1) has one buffer of min(limit, total) bytes. It packs the tensors in file
order, and when one does not fit it sends what it has as one request and starts again at offset 0. So a
request's tensors lie one behind the other from the start of the buffer, and a later request overwrites as far
as it reaches. The plan follows from sizes alone, for files as for a model that is not there (gpt-oss-120b).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, groupby

from gptoss_lab.weights.headers import Shard, Source, read_shards
from gptoss_lab.weights.limits import SMALLEST, UNLIMITED, StreamingError, require_room, resolve_limit


@dataclass(frozen=True)
class Slot:
    """A tensor's place: the bytes [start, stop) of the buffer, filled by one request (counted from 0)."""

    name: str
    request: int
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """The tensor's size in bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class Plan:
    """What a stream will do to its buffer. `slots` are in the order of the files."""

    memory_limit: int
    buffer_bytes: int
    slots: tuple[Slot, ...]

    @property
    def total_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(slot.nbytes for slot in self.slots)

    @cached_property
    def requests(self) -> list[list[Slot]]:
        """The slots of each request."""
        return [list(group) for _, group in groupby(self.slots, key=lambda slot: slot.request)]

    @cached_property
    def overwritten(self) -> list[str]:
        """The names whose views no longer hold their own bytes when the stream has ended."""
        return [slot.name for slot in self.slots if self._lost_bytes(slot)]

    @property
    def overwritten_bytes(self) -> int:
        """How many bytes of such views belong to a later request. A view may be damaged in part."""
        return sum(self._lost_bytes(slot) for slot in self.slots)

    def slot(self, name: str) -> Slot:
        """The place of one tensor. Raises StreamingError for a name that is not in the plan."""
        if name not in self._by_name:
            raise StreamingError(f"tensor {name!r} is not among the {len(self.slots)} of this plan: check the name")
        return self._by_name[name]

    def overwriters(self, name: str) -> list[Slot]:
        """The slots of later requests that overlap this tensor's, first to last. The last one's stay."""
        mine = self.slot(name)
        return [
            other
            for other in self.slots
            if other.request > mine.request and max(mine.start, other.start) < min(mine.stop, other.stop)
        ]

    @cached_property
    def _by_name(self) -> dict[str, Slot]:
        return {slot.name: slot for slot in self.slots}

    @cached_property
    def _reach(self) -> list[int]:
        """For each request, how far into the buffer any later one writes. All of them start at offset 0."""
        reach = [0]
        for request in reversed(self.requests[1:]):
            reach.append(max(reach[-1], request[-1].stop))
        return reach[::-1]

    def _lost_bytes(self, slot: Slot) -> int:
        return max(0, min(slot.stop, self._reach[slot.request]) - slot.start)


def plan(source: Source, memory_limit: int | str | None = None) -> Plan:
    """Predict the requests of a stream, each tensor's interval in the buffer, and what will be overwritten.

    `source` is what would be streamed: a folder, a `Checkpoint`, or files, of which only the headers are
    read; or `TensorSpec`s, one list a shard, which are put in the order of a file. `memory_limit` is as in
    `streaming.stream`. The prediction is exact for the pinned streamer (0.16.1), whatever the concurrency.

    Raises:
        StreamingError: a limit that no buffer could meet, a name twice, or tensors without elements that the
            streamer would lose. CheckpointError: files that do not hold what they promise.
    """
    return plan_shards(read_shards(source), resolve_limit(memory_limit))


def plan_shards(shards: Sequence[Shard], limit: int) -> Plan:
    """Make the plan for shards that were read and a limit that was parsed; refuses as `plan` does."""
    require_distinct_names(shards)
    require_limit(shards, limit)
    buffer_bytes = buffer_size(shards, limit)
    packed = pack(shards, buffer_bytes)
    require_kept_count(packed, limit)
    return Plan(limit, buffer_bytes, tuple(slot for shard in packed for slot in shard))


def buffer_size(shards: Sequence[Shard], limit: int) -> int:
    """The size of the staging buffer in bytes."""
    sizes = [spec.nbytes for shard in shards for spec in shard.specs]
    if limit == UNLIMITED:
        return sum(sizes)
    if limit == SMALLEST:
        return max(sizes, default=0)
    return min(limit, sum(sizes))


def pack(shards: Sequence[Shard], buffer_bytes: int) -> list[list[Slot]]:
    """Give each tensor its slot, in file order; start a new request at offset 0 when one does not fit."""
    packed = []
    request = offset = 0
    for shard in shards:
        slots = []
        for spec in shard.specs:
            if offset + spec.nbytes > buffer_bytes:
                request, offset = request + 1, 0
            slots.append(Slot(spec.name, request, offset, offset + spec.nbytes))
            offset += spec.nbytes
        packed.append(slots)
    return packed


def require_distinct_names(shards: Iterable[Shard]) -> None:
    """Refuse a name that occurs twice: the streamer yields both, and the later one wins in silence."""
    owner: dict[str, str] = {}
    for shard in shards:
        for spec in shard.specs:
            if spec.name in owner:
                where = owner[spec.name] if owner[spec.name] == shard.label else f"{owner[spec.name]}, {shard.label}"
                raise StreamingError(
                    f"tensor {spec.name!r} is there twice (in {where}): give each file once, and leave out "
                    "files that the index does not name"
                )
            owner[spec.name] = shard.label


def require_limit(shards: Sequence[Shard], limit: int) -> None:
    """Refuse a limit below the largest tensor or below a header: both pass through the buffer as a whole."""
    for shard in shards:
        require_room(f"the header of {shard.label}", shard.header_bytes, limit)
    specs = [spec for shard in shards for spec in shard.specs]
    if specs:
        largest = max(specs, key=lambda spec: spec.nbytes)
        require_room(f"tensor {largest.name!r}", largest.nbytes, limit)


def require_kept_count(packed: Iterable[Sequence[Slot]], limit: int) -> None:
    """Refuse the one layout in which the streamer (0.16.1) miscounts, and gives tensors each other's names.

    It happens when a shard begins with a tensor without elements and the next tensor needs a new request: the
    empty one is taken off the list, but its request is closed without it.
    """
    for slots in packed:
        rest = list(dropwhile(lambda slot: slot.nbytes == 0, slots))
        if rest and slots[0].request != rest[0].request:
            raise StreamingError(
                f"tensor {slots[0].name!r} has no elements and {rest[0].name!r} behind it does not fit the "
                f"buffer any more: at memory_limit={limit} the streamer would mix up this file's names. Use "
                "another memory_limit (-1 always works), or store the file without the empty tensor"
            )
