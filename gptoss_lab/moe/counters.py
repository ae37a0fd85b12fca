"""Counters on a GPU for kernels whose programs count themselves done.

Such a kernel needs an int32 that is 0 when it starts, that nobody else uses while it runs, and it leaves 0 behind. One
counter for all calls is wrong: two streams run two calls at once, and the second to come ends the count of the first.
A fresh zero for each call is right, and one launch more. So counters come from a pool that was zeroed once:

- An eager call takes the counter of its stream. What runs on a stream runs one after the other.
- A call that is being captured in a CUDA graph takes one that is never given out again. A graph does not overlap with
  itself, but with every other graph and stream.
"""

from __future__ import annotations

import threading

import torch
import triton

CHUNK = 16384  # counters of 4 bytes that are zeroed at once
RESERVE = 4096  # fewer than these left, and a call outside of a capture makes the next chunk


class Counters:
    """The counters of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lock = threading.Lock()
        self.of_stream: dict[int, torch.Tensor] = {}
        self.chunk = torch.empty(0, dtype=torch.int32, device=device)
        self.chunks: list[torch.Tensor] = []  # all of them stay: a graph holds the bare address of its counter
        self.used = 0

    def take(self) -> torch.Tensor:
        """Return a counter, int32 [1] and 0, for a launch on the current stream.

        In a capture that finds no counter left, a zero is made in the graph itself, which is one launch more.
        """
        if self.device.type != "cuda":
            return self._of_stream(0)
        if torch.cuda.is_current_stream_capturing():
            with self.lock:
                if self.used < len(self.chunk):
                    return self._next()
            return torch.zeros(1, dtype=torch.int32, device=self.device)
        return self._of_stream(triton.runtime.driver.active.get_current_stream(self.device.index))

    def _of_stream(self, stream: int) -> torch.Tensor:
        counter = self.of_stream.get(stream)
        if counter is None or len(self.chunk) - self.used < RESERVE:
            with self.lock:
                if len(self.chunk) - self.used < RESERVE:
                    self.chunk, self.used = torch.zeros(CHUNK, dtype=torch.int32, device=self.device), 0
                    self.chunks.append(self.chunk)
                    if self.device.type == "cuda":
                        torch.cuda.current_stream(self.device).synchronize()  # zero for all streams, not for this one
                counter = self.of_stream.setdefault(stream, self._next())
        return counter

    def _next(self) -> torch.Tensor:
        self.used += 1
        return self.chunk[self.used - 1 : self.used]


_of_device: dict[torch.device, Counters] = {}


def counters(device: torch.device) -> Counters:
    """Return the counters of a device; they stay for the life of the process."""
    found = _of_device.get(device)
    return _of_device.setdefault(device, Counters(device)) if found is None else found
