"""The zoo's checkpoint, and a stream of it whose late reads have one outcome.

A late read may find old bytes, new ones, or half of each, as far as the reading threads have come. So that a test
need not be lucky, `settled` holds back the first tensor of a request until all of the request has been written. Then
a late read finds the new bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from gptoss_lab.weights.borrow.tracking import find_streamer
from gptoss_lab.weights.cases import write_case_checkpoint
from gptoss_lab.weights.compare import raw_bytes
from gptoss_lab.weights.plan import Plan, plan
from gptoss_lab.weights.streaming import stream

PATIENCE_S = 60


@dataclass(frozen=True)
class Files:
    path: Path
    stored: dict[str, torch.Tensor]  # as safetensors reads them
    total: int

    @property
    def limits(self) -> dict[str, int]:
        return {"0": 0, "quarter": self.total // 4, "half": self.total // 2}


def read_files(folder: Path) -> Files:
    path = folder / "model.safetensors"
    if not path.exists():
        write_case_checkpoint(folder)
    return Files(path, load_file(path), plan(path, 0).total_bytes)


class Settled(Iterator):
    def __init__(self, files: Files, limit: int, concurrency: int | None) -> None:
        self.source = stream(files.path, memory_limit=limit, concurrency=concurrency)
        self.stored, self.plan = files.stored, plan(files.path, limit)
        self.request = -1

    def __next__(self):
        item = next(self.source)
        request = self.plan.slot(item[0]).request
        if request != self.request:
            self.request = request
            wait_for(self.source, self.plan, request, self.stored)
        return item

    def close(self) -> None:
        self.source.close()


def wait_for(source, layout: Plan, request: int, stored: dict[str, torch.Tensor]) -> None:
    content = b"".join(raw_bytes(stored[slot.name]) for slot in layout.requests[request])
    buffer = find_streamer(source).requests_iterator.buffer
    end = time.monotonic() + PATIENCE_S
    while buffer[: len(content)].tobytes() != content:
        if time.monotonic() > end:
            raise TimeoutError(f"request {request} was not written in {PATIENCE_S} s")
        time.sleep(0.0005)


def settled(files: Files, limit: int, concurrency: int | None = 1) -> Settled:
    return Settled(files, limit, concurrency)
