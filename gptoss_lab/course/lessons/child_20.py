"""What lesson 20 asks of the newer streamer. Runs in a child process that imports 0.17; prints one line of JSON.

`python -m gptoss_lab.course.lessons.child_20 QUESTION ARGUMENTS`, see `newer_20`.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import torch
from runai_model_streamer import SafetensorsStreamer
from safetensors.torch import load_file, save_file

Item = tuple[str, torch.Tensor]
MIB = 2**20


def stream(path: str, limit: int, **arguments: bool) -> Iterator[Item]:
    """The tensors of a file, in its order: one reading thread."""
    os.environ |= {"RUNAI_STREAMER_MEMORY_LIMIT": str(limit), "RUNAI_STREAMER_CONCURRENCY": "1"}
    with SafetensorsStreamer() as streamer:
        streamer.stream_files([path], **arguments)
        yield from streamer.get_tensors()


def count_wrong(path: str, limit: int, **arguments: bool) -> int:
    """How many tensors are wrong if the whole stream is kept in a list, and then compared with safetensors."""
    stored = load_file(path)
    return sum(
        not torch.equal(tensor.view(torch.uint8), stored[name].view(torch.uint8))
        for name, tensor in list(stream(path, limit, **arguments))
    )


def answer_drained(path: str, limits: str) -> dict:
    """What the default gives to a loader that drains the stream, at each limit."""
    parameter = inspect.signature(SafetensorsStreamer.stream_files).parameters["owned"]
    return {
        "version": version("runai-model-streamer"),
        "owned_by_default": parameter.default,
        "wrong": [count_wrong(path, limit) for limit in json.loads(limits)],
    }


def answer_ring(path: str, limits: str, depths: str, runs: str) -> dict:
    """Wrong tensors with `owned=False`: for each depth of the ring and each limit, one count a run."""
    counts = {}
    for depth in json.loads(depths):
        os.environ["RUNAI_STREAMER_RING_BUFFERS"] = str(depth)
        counts[depth] = [
            [count_wrong(path, limit, owned=False) for _ in range(int(runs))] for limit in json.loads(limits)
        ]
    return counts


KEEP: dict[str, Callable[[str, torch.Tensor], object]] = {
    "nothing": lambda name, tensor: None,
    "copies of the norms": lambda name, tensor: tensor.clone() if "norm" in name else None,
    "the norms": lambda name, tensor: tensor if "norm" in name else None,
    "everything": lambda name, tensor: tensor,
}
LAYERS, ROWS, COLUMNS = 64, 512, 1024  # of BF16: 1 MiB a weight


def answer_kept(folder: str, limit: str) -> dict:
    """Host memory in MiB that remains after a load with `owned=True`, by what the loader keeps."""
    path = Path(folder) / "layers.safetensors"
    tensors = {}
    for layer in range(LAYERS):
        tensors[f"layers.{layer:02}.a_norm"] = torch.full((COLUMNS,), float(layer), dtype=torch.bfloat16)
        tensors[f"layers.{layer:02}.weight"] = torch.full((ROWS, COLUMNS), float(layer), dtype=torch.bfloat16)
    save_file(tensors, path)
    sizes = {
        "checkpoint": sum(tensor.nbytes for tensor in tensors.values()) / MIB,
        "norms": sum(tensor.nbytes for name, tensor in tensors.items() if "norm" in name) / MIB,
    }
    del tensors
    return sizes | {"kept": {what: in_a_fork(held_after, str(path), int(limit), what) for what in KEEP}}


def held_after(path: str, limit: int, what: str) -> float:
    """Growth of this process's own memory in MiB, when the load is over and the kept tensors are still held."""
    before = own_memory()
    kept = [KEEP[what](name, tensor) for name, tensor in stream(path, limit, owned=True)]
    gc.collect()
    grown = own_memory() - before
    del kept
    return grown


def own_memory() -> float:
    """Resident memory of this process that is no file's, in MiB."""
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def in_a_fork(work: Callable[..., float], *arguments: object) -> float:
    """Run in a process of its own, so that what one leaves behind does not count for the next."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(work(*arguments)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said)


if __name__ == "__main__":
    print(json.dumps(globals()[f"answer_{sys.argv[1]}"](*sys.argv[2:])))
