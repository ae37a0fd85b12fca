"""Load a checkpoint in a process that may use a little more memory than the model: what a small host is like."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from gptoss_lab.course.lab import ROOT
from gptoss_lab.weights.cases import CASES, Parameters
from gptoss_lab.weights.streaming import stream

MIB = 2**20
BUFFER, SPARE = 4 * MIB, 24 * MIB
LAYERS = [f"layers.{i:02}.weight" for i in range(48)]
RAN_OUT = 3


def load_on_small_host(name: str, fixed: bool) -> str:
    """Load 48 MiB with a case's loader, with 24 MiB to spare; returns "loaded" or "out of host memory"."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file({layer: torch.full((MIB,), i, dtype=torch.uint8) for i, layer in enumerate(LAYERS)}, path)
        way = "fixed" if fixed else "faulty"
        command = [sys.executable, "-m", "gptoss_lab.course.lessons.small_host_18", name, way, str(path)]
        child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if child.returncode not in (0, RAN_OUT):
        raise RuntimeError(f"the small host ended with {child.returncode}: {child.stderr.strip()[-300:]}")
    return "out of host memory" if child.returncode == RAN_OUT else "loaded"


def load_here(name: str, way: str, path: str) -> int:
    """What the child does. It frees no large memory, which it could use again without asking for more."""
    model = Parameters(dict.fromkeys(LAYERS, torch.zeros(1, dtype=torch.uint8).expand(MIB)))
    weights = stream(path, memory_limit=BUFFER, concurrency=1)
    allow(data_bytes() + BUFFER + SPARE)
    try:
        getattr(CASES[name], way)(model, weights)
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        return RAN_OUT
    return 0


def data_bytes() -> int:
    """The private memory that this process may write to, in bytes, as Linux counts it against its limit."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData: this needs Linux")


def allow(data: int) -> None:
    """Refuse this process more private memory than `data` bytes."""
    resource.setrlimit(resource.RLIMIT_DATA, (data, resource.getrlimit(resource.RLIMIT_DATA)[1]))


if __name__ == "__main__":
    sys.exit(load_here(*sys.argv[1:]))
