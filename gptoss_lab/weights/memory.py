"""Memory over time while a model is loaded, host and device apart, also where there is no GPU.

Without a GPU, *shared memory* stands for the device: the parameters lie in shared mappings, which Linux
counts as RssShmem, apart from RssAnon, where the streamer's buffer and all host copies are. With a GPU, the
device's side is what torch has allocated there.

Each run is a process of its own, so that it starts from nothing and its peak is its own. Resident memory is
sampled, so it is for pictures; the exact counts are in `LoadReport`.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open

from gptoss_lab.config import Config
from gptoss_lab.model import GptOss
from gptoss_lab.weights.checkpoint import Checkpoint, read_checkpoint
from gptoss_lab.weights.compare import same_bytes
from gptoss_lab.weights.limits import parse_size
from gptoss_lab.weights.loading import STRATEGIES, clone_on_device, drain, own
from gptoss_lab.weights.report import LoadReport, Weights
from gptoss_lab.weights.streaming import stream

MEASURED = Config(
    num_hidden_layers=14,
    vocab_size=29696,
    hidden_size=512,
    intermediate_size=512,
    num_attention_heads=8,
    num_key_value_heads=2,
)
"""A gpt-oss of 256 MiB, for `write_random_checkpoint`: about a quarter is not experts, as in gpt-oss-20b."""

WAYS = ("clone_all_on_device", "copy_all_on_host", *STRATEGIES)
"""What `measure` can run: the strategies, and two that copy the whole stream before they load it."""

SECONDS_BETWEEN_SAMPLES = 0.002


class MeasurementError(RuntimeError):
    """A way that does not exist, or a measuring process that failed; the message holds its last line."""


@dataclass(frozen=True)
class MemoryRun:
    """One load. Bytes are growth since just before it; `samples` are (seconds, host bytes, device bytes).

    `wrong` of `tensors` parameters do not equal the file's. `device` is "shared memory" or the GPU's name.
    `seconds` is the time of the load alone, with sampling switched on.
    """

    way: str
    memory_limit: int | None
    device: str
    seconds: float
    host_peak: int
    device_peak: int
    samples: list[tuple[float, int, int]]
    wrong: int
    tensors: int


def measure(folder: str | Path, way: str, memory_limit: int | str | None = None) -> MemoryRun:
    """Load a checkpoint once, in a process of its own, and return its memory over time.

    `way` is one of `WAYS`; `memory_limit` as in `streaming.stream`. Raises MeasurementError if the way is
    unknown or the process fails.
    """
    if way not in WAYS:
        raise MeasurementError(f"there is no way of loading named {way!r}: choose one of {', '.join(WAYS)}")
    limit = None if memory_limit is None else parse_size(memory_limit)
    command = [sys.executable, "-m", "gptoss_lab.weights.memory", str(folder), way, json.dumps(limit)]
    # A fixed threshold makes glibc return what is freed to Linux, so the picture goes down as well as up.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(256 * 1024)}
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if child.returncode:
        last = child.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise MeasurementError(f"the process that measured {way!r} ended with {child.returncode}: {last[0]}")
    run = json.loads(child.stdout.splitlines()[-1])
    return MemoryRun(**run | {"samples": [tuple(sample) for sample in run["samples"]]})


def resident_bytes(kind: str) -> int:
    """This process's memory of one kind, "RssAnon" or "RssShmem", in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(kind + ":"):
            return int(line.split()[1]) * 1024
    raise MeasurementError(f"/proc/self/status has no {kind}: this needs Linux 4.5 or later")


class Device(Protocol):
    """Where a model's parameters come to rest."""

    name: str

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the device, without content."""

    def used(self) -> int:
        """Bytes in use on the device."""

    def peak(self) -> int:
        """The highest `used` that the device itself remembers."""


class SharedMemory:
    """The stand-in for a GPU: what is on it lies in shared mappings, which count page by page as written."""

    name = "shared memory"

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.nbytes:
            return torch.empty_like(tensor)
        pages = mmap.mmap(-1, tensor.nbytes)  # anonymous, shared
        return torch.frombuffer(pages, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape)

    def used(self) -> int:
        return resident_bytes("RssShmem")

    def peak(self) -> int:
        return self.used()  # Linux does not remember it by kind


class Gpu:
    """The current CUDA device; its use is what torch has allocated."""

    def __init__(self) -> None:
        self.name = torch.cuda.get_device_name()
        torch.zeros(1).to("cuda").cpu()  # what CUDA takes on the host for itself, it takes now
        torch.cuda.reset_peak_memory_stats()

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="cuda")

    def used(self) -> int:
        return torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()


class Sampler:
    """A thread that notes host and device memory, as growth since it was made, while it is entered."""

    def __init__(self, device: Device) -> None:
        self.device, self.samples = device, []
        self._zero = resident_bytes("RssAnon"), device.used()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._start = time.perf_counter()
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def peaks(self) -> tuple[int, int]:
        """The highest host and device growth seen."""
        _, host, device = zip(*self.samples, strict=True)
        return max(host), max(*device, self.device.peak() - self._zero[1])

    def _sample(self) -> None:
        host, device = resident_bytes("RssAnon") - self._zero[0], self.device.used() - self._zero[1]
        self.samples.append((round(time.perf_counter() - self._start, 6), host, device))

    def _run(self) -> None:
        while not self._stop.wait(SECONDS_BETWEEN_SAMPLES):
            self._sample()


def run_way(
    way: str, model: GptOss, weights: Weights, names: list[str], clone: Callable[[torch.Tensor], torch.Tensor]
) -> LoadReport:
    """Load in one of `WAYS`. `clone` copies a tensor to the device, where the way asks for that."""
    if way == "clone_all_on_device":
        return drain(model, ((name, clone(tensor)) for name, tensor in weights), names=names)
    if way == "copy_all_on_host":
        return drain(model, ((name, own(tensor)) for name, tensor in weights), names=names)
    if way == "clone_on_device":
        return clone_on_device(model, weights, names=names, own=clone)
    return STRATEGIES[way](model, weights, names=names)


def measure_here(folder: Path, way: str, memory_limit: int | None) -> MemoryRun:
    """What `measure` does, in this process. Only a process's first run has a peak of its own."""
    checkpoint = read_checkpoint(folder)
    device: Device = Gpu() if torch.cuda.is_available() else SharedMemory()
    model = GptOss(Config.from_file(folder), torch.bfloat16)
    sampler = Sampler(device)
    for parameter in model.parameters():
        parameter.data = device.empty_like(parameter)
    with sampler:
        start = time.perf_counter()
        weights = stream(checkpoint, memory_limit=memory_limit)
        run_way(way, model, weights, list(checkpoint.tensors), lambda t: device.empty_like(t).copy_(t))
        seconds = time.perf_counter() - start
    host_peak, device_peak = sampler.peaks()
    wrong = count_wrong(model, checkpoint)
    tensors = len(checkpoint.tensors)
    return MemoryRun(way, memory_limit, device.name, seconds, host_peak, device_peak, sampler.samples, wrong, tensors)


def count_wrong(model: GptOss, checkpoint: Checkpoint) -> int:
    """How many of the model's parameters do not hold the bytes of the files."""
    parameters = dict(model.named_parameters())
    wrong = 0
    for path in checkpoint.files:
        with safe_open(path, framework="pt") as file:
            wrong += sum(not same_bytes(file.get_tensor(name), parameters[name]) for name in file.keys())
    return wrong


if __name__ == "__main__":
    folder, way, limit = sys.argv[1:]
    print(json.dumps(asdict(measure_here(Path(folder), way, json.loads(limit)))))
