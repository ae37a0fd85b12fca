"""An iterator of `(name, tensor)` over the Run:ai streamer, with its limit and its concurrency as arguments.

Every tensor on the CPU is *borrowed*: a view of the streamer's one staging buffer. It is safe until the
`next()` after the last tensor of its request, and from then on a later request may lie in its place. `plan`
tells which views that will hit. This is the contract of the streamer up to 0.16.1, which the course pins.
From 0.17 on `stream_files(owned=True)` is the default and gives every tensor to the caller, so the fault does
not show there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from runai_model_streamer import SafetensorsStreamer

from gptoss_lab.weights.environment import restored
from gptoss_lab.weights.headers import Files, Shard, read_shards
from gptoss_lab.weights.limits import (
    CONCURRENCY_VARIABLE,
    LIMIT_VARIABLE,
    StreamingError,
    parse_size,
    resolve_concurrency,
    resolve_limit,
)
from gptoss_lab.weights.plan import Plan, Slot, plan, plan_shards
from gptoss_lab.weights.writing import CODES

__all__ = ["STREAMED", "Plan", "Slot", "StreamingError", "is_streamed", "parse_size", "plan", "stream", "stream_uris"]

STREAMED = "runai_streamed"
TORCH_DTYPES = {code: dtype for dtype, code in CODES.items()}
GROUP_SIZE_VARIABLE = "RUNAI_STREAMER_PROCESS_GROUP_SIZE"  # set by the streamer itself, and left behind
_ENVIRONMENT = threading.Lock()  # the environment belongs to all threads, so one stream opens at a time


def is_streamed(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor carries the mark of a stream.

    The mark is an attribute named by `STREAMED` on the Python object, as in SGLang (pull request 38908). A
    tensor derived from a marked one (`view`, `detach`, `narrow`) has no mark, though it may lie in the same
    buffer.
    """
    return getattr(tensor, STREAMED, False)


def stream(
    files: Files,
    *,
    memory_limit: int | str | None = None,
    concurrency: int | None = None,
    device: str | torch.device = "cpu",
) -> Iterator[tuple[str, torch.Tensor]]:
    """Stream the tensors of safetensors files, each marked as streamed.

    `files` are the files in the order to be read, or a folder or `Checkpoint`, whose index gives the order.
    `memory_limit` bounds the staging buffer: bytes, a size such as "1GiB", -1 for no limit, 0 for the size of
    the largest tensor; None is the streamer's own choice (its environment variable, else 40 GB). It binds the
    headers too. `concurrency` is the number of reading threads (None: the streamer's 16); above 1 the tensors
    of a request may come in any order. On a `device` other than the CPU each tensor is a fresh copy there.

    All files are checked before the first tensor is read. The streamer opens at the first `next()` and ends
    when the iterator does: exhausted, closed or forgotten. The environment is changed only while it opens.

    Raises:
        StreamingError: a limit below what must pass through the buffer, a name twice, an argument that makes
            no sense, or an error of the streamer while it reads. CheckpointError: a file that is missing,
            truncated or inconsistent.
    """
    shards, limit = read_shards(files), resolve_limit(memory_limit)
    plan_shards(shards, limit)  # refuses what the streamer would refuse late, or get wrong
    return _tensors(shards, limit, resolve_concurrency(concurrency), str(device))


def _tensors(
    shards: Sequence[Shard], limit: int, concurrency: int | None, device: str
) -> Iterator[tuple[str, torch.Tensor]]:
    filled = [shard for shard in shards if shard.nbytes]
    paths = [str(shard.path) for shard in filled]
    # A shard without bytes is kept from the streamer: at limit 0 it fails on a file that holds no tensor, and
    # at every limit it passes over a file whose tensors are all empty.
    for shard in shards:
        if not shard.nbytes:
            yield from map(_mark, _empty_tensors(shard, device))
    if filled:
        yield from _borrow(paths, limit, concurrency, device)


def stream_uris(
    uris: Sequence[str],
    *,
    memory_limit: int | str | None = None,
    concurrency: int | None = None,
    device: str | torch.device = "cpu",
) -> Iterator[tuple[str, torch.Tensor]]:
    """Stream safetensors objects of an object store, each tensor marked as streamed.

    `uris` are addresses such as "s3://bucket/key", in the order to be read. The other arguments are as in `stream`.
    The place of the store and the credentials are the environment's, from the first `next()` to the last. The
    objects are not checked beforehand, so what `stream` refuses is here found late, or not at all: compare the
    names with the index, and a `plan` of the same files with the limit.

    Raises:
        StreamingError: a limit or concurrency that makes no sense, something else than an address, or an error of
            the streamer while it reads.
    """
    for uri in uris:
        if "://" not in str(uri):
            raise StreamingError(f"{str(uri)!r} is no address such as s3://bucket/key: use `stream` for files")
    return _borrow(list(uris), resolve_limit(memory_limit), resolve_concurrency(concurrency), str(device))


def _borrow(
    paths: Sequence[str], limit: int, concurrency: int | None, device: str
) -> Iterator[tuple[str, torch.Tensor]]:
    settings = {LIMIT_VARIABLE: str(limit), CONCURRENCY_VARIABLE: concurrency and str(concurrency)}
    try:
        with ExitStack() as stack:
            with _environment(settings):
                streamer = stack.enter_context(SafetensorsStreamer())  # reads the concurrency
                streamer.stream_files(paths, device=device)  # reads the limit, sends the first request
            # `map`, not a loop: a loop variable here would keep a tensor alive until the next one is there.
            yield from map(_mark, streamer.get_tensors())
    except Exception as error:
        raise StreamingError(f"the streamer broke off while reading {', '.join(paths)}: {error}") from error


def _empty_tensors(shard: Shard, device: str) -> Iterator[tuple[str, torch.Tensor]]:
    for spec in shard.specs:
        yield spec.name, torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device=device)


def _mark(item: tuple[str, torch.Tensor]) -> tuple[str, torch.Tensor]:
    setattr(item[1], STREAMED, True)
    return item


@contextmanager
def _environment(settings: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: leave as it is) and restore what was there, the streamer's own too."""
    with _ENVIRONMENT, restored((*settings, GROUP_SIZE_VARIABLE)):
        os.environ.update({name: value for name, value in settings.items() if value is not None})
        yield
