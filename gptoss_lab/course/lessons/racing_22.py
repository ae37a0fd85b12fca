"""A checkpoint of large tensors, and what old views of it hold while the next request is written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from gptoss_lab.weights.streaming import stream

Sample = tuple[float, list[float]]

MIB = 2**20
VIEWS = 8
OLD, NEW = 1, 2
PATIENCE_S = 30
SAMPLED_EVERY = 4093  # bytes; a prime, so that it follows no pattern


def write_two_requests(folder: str | Path, mib: int) -> Path:
    """Write 16 tensors of `mib` MiB: eight of bytes 1, then eight of bytes 2. Half of it is the limit to stream with.

    The second eight come as one request, which lies exactly over the first.
    """
    path = Path(folder) / f"{mib}.safetensors"
    tensors = {
        f"{value}.{view}": torch.full((mib * MIB,), value, dtype=torch.uint8)
        for value in (OLD, NEW)
        for view in range(VIEWS)
    }
    save_file(tensors, path)
    return path


def limit_of(path: Path) -> int:
    """The limit at which the file comes in two requests: half of its tensors' bytes."""
    return path.stat().st_size // 2 // MIB * MIB


def cross(path: Path) -> tuple[dict[str, torch.Tensor], Iterator]:
    """Stream up to the first tensor of the second request; return the old views and the stream, to be kept open."""
    limit = limit_of(path)
    weights = stream(path, memory_limit=limit, concurrency=1)
    old = dict(next(weights) for _ in range(VIEWS))
    next(weights)
    return old, weights


def watch_overwriting(path: Path, rounds: int = 5) -> list[Sample]:
    """Cross, and sample the share of each old view that holds new bytes until all do: (seconds, shares).

    A busy machine lets the sampler miss the moment, so the round that saw most of it is returned.
    """
    return max((watch_once(path) for _ in range(rounds)), key=count_torn)


def watch_once(path: Path) -> list[Sample]:
    """One round."""
    old, weights = cross(path)
    start, samples = time.perf_counter(), []
    while not samples or min(samples[-1][1]) < 1:
        shares = [(tensor[::SAMPLED_EVERY] == NEW).float().mean().item() for tensor in old.values()]
        samples.append((time.perf_counter() - start, shares))
        time.sleep(0.0002)  # or the scheduler takes the sampler for the one that can wait
        if samples[-1][0] > PATIENCE_S:
            raise TimeoutError(f"the second request of {path} was not written in {PATIENCE_S} s")
    weights.close()
    return samples


def count_torn(samples: list[Sample]) -> int:
    """How many samples found a view that was neither old nor new."""
    return sum(any(0 < share < 1 for share in shares) for _, shares in samples)


def passes(path: Path, delay_ms: float) -> list[bool]:
    """Cross, wait, read the first, the middle and the last old view: whether each still held its own bytes.

    Sampled, and the last view first, so that reading one does not make the next later by much.
    """
    old, weights = cross(path)
    time.sleep(delay_ms / 1000)
    views = list(old.values())
    found = [bool((views[place][::SAMPLED_EVERY] == OLD).all()) for place in (VIEWS - 1, VIEWS // 2, 0)]
    weights.close()
    return found[::-1]
