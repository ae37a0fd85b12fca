"""Time a load under each of the tools of `gptoss_lab.weights.borrow` against the same load without one.

    python benchmarks/borrow.py                                # a generated checkpoint of 1.5 GiB
    python benchmarks/borrow.py --record data/cpu/borrow.json  # and keep the result, with its provenance

Every way copies each tensor into its place as it arrives. Values come before times: each way's parameters are compared
with the files first. Then the ways take turns. The machine's other work moves such times by more than a tool costs, so
"extra" is the median over the rounds of what a way took longer than "none" in the same round, and "again" is "none"
once more: what it differs by is noise. "inside" is the time that the reading thread spends inside the tool's `next()`
and not inside the stream's. The files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from gptoss_lab.provenance import installed_version, provenance, write_record
from gptoss_lab.weights.borrow import audit, guard, prove
from gptoss_lab.weights.cases import Parameters
from gptoss_lab.weights.compare import differing
from gptoss_lab.weights.limits import parse_size
from gptoss_lab.weights.plan import plan
from gptoss_lab.weights.streaming import stream

SHARDS, LAYERS = 3, 7  # a shard has `LAYERS` layers of seven tensors, the largest about a tenth of it
SHARES = {"up.blocks": 48, "down.blocks": 24, "up.scales": 3, "down.scales": 2, "qkv": 12, "out": 10, "norm": 1}
TOOLS: dict[str, Callable] = {
    "none": iter,
    "again": iter,  # what differs between two of the same is noise
    "audit": audit,
    "guard": guard,
    "strict": lambda weights: guard(weights, strict=True),
}


class Timed(Iterator):
    """An iterator and the processor time of this thread that its `next()` took."""

    def __init__(self, source: Iterator) -> None:
        self.source, self.seconds = source, 0.0

    def __next__(self) -> Any:
        start = time.thread_time()
        try:
            return next(self.source)
        finally:
            self.seconds += time.thread_time() - start


def main() -> None:
    """Measure, print a table, and write the record if one was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="1.5GiB", help="of the checkpoint (default: 1.5GiB)")
    parser.add_argument("--limit", default="256MiB", help="the streamer's memory limit (default: 256MiB)")
    parser.add_argument("--rounds", type=int, default=21, help="how often each way is timed (default: 21)")
    parser.add_argument("--record", type=Path, help="write the result as JSON to this file")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: give 1 or more")
    limit = parse_size(arguments.limit)
    if arguments.child:
        print(json.dumps(time_in_child(arguments.child, limit, arguments.rounds)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        files = write_files(Path(scratch), parse_size(arguments.size))
        record = measure(files, limit, arguments.rounds)
    print_table(record)
    if arguments.record:
        write_record(arguments.record, record)


def write_files(folder: Path, nbytes: int) -> list[Path]:
    """Write the shards of a checkpoint of about `nbytes`."""
    unit = nbytes // (SHARDS * LAYERS * sum(SHARES.values()))
    random = torch.Generator().manual_seed(0)
    files = []
    for shard in range(SHARDS):
        tensors = {
            f"layers.{shard * LAYERS + layer}.{name}": torch.randint(
                0, 256, (share, unit), dtype=torch.uint8, generator=random
            )
            for layer in range(LAYERS)
            for name, share in SHARES.items()
        }
        files.append(folder / f"model-{shard}.safetensors")
        save_file(tensors, files[-1])
    return files


def measure(files: list[Path], limit: int, rounds: int) -> dict[str, Any]:
    """Check and time every tool; returns the record."""
    stored = {name: tensor for file in files for name, tensor in load_file(file).items()}
    model = Parameters(stored)
    for name in TOOLS:
        for tensor in model.tensors.values():
            tensor.zero_()
        load(TOOLS[name], files, limit, model)
        wrong = differing(stored, model.tensors)
        if wrong:
            raise SystemExit(f"{name}: {len(wrong)} wrong tensors: no times are taken")
    del stored
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in TOOLS}
    for number in range(rounds):
        names = list(TOOLS)
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            runs[name].append(load(TOOLS[name], files, limit, model))
    ways = {name: summarise(results) for name, results in runs.items()}
    for name, results in runs.items():
        pairs = zip(results, runs["none"], strict=True)
        ways[name]["extra_seconds"] = statistics.median(way["seconds"] - none["seconds"] for way, none in pairs)
    ways |= measure_proof(files, limit, rounds)
    origin = provenance()
    origin["versions"] |= {name: installed_version(name) for name in ("runai-model-streamer", "safetensors")}
    layout = plan(files, limit)
    return origin | {
        "bytes": layout.total_bytes,
        "tensors": len(layout.slots),
        "memory_limit": limit,
        "requests": len(layout.requests),
        "rounds": rounds,
        "ways": ways,
    }


def load(tool: Callable, files: list[Path], limit: int, model: Parameters) -> dict[str, float]:
    """Load once; returns seconds on the clock, of the thread's processor time, and inside the tool."""
    inner = Timed(stream(files, memory_limit=limit))
    outer = Timed(tool(inner))
    clock, processor = time.perf_counter(), time.thread_time()
    for name, tensor in outer:
        model.copy_in(name, tensor)
    return {
        "seconds": time.perf_counter() - clock,
        "thread_seconds": time.thread_time() - processor,
        "inside_seconds": outer.seconds - inner.seconds,
    }


def summarise(results: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure, and the fastest and slowest run."""
    medians = {key: statistics.median(result[key] for result in results) for key in results[0]}
    seconds = [result["seconds"] for result in results]
    return medians | {"fastest": min(seconds), "slowest": max(seconds)}


def time_in_child(folder: Path, limit: int, rounds: int) -> list[dict[str, float]]:
    """What a child does, under `prove` or not: load without a tool."""
    files = sorted(folder.glob("*.safetensors"))
    model = Parameters({name: tensor for file in files for name, tensor in load_file(file).items()})
    return [load(iter, files, limit, model) for _ in range(rounds)]


def measure_proof(files: list[Path], limit: int, rounds: int) -> dict[str, dict[str, float]]:
    """The same load in a child under `prove`, and in one that is not."""
    command = [__file__, "--child", str(files[0].parent), "--limit", str(limit), "--rounds", str(rounds)]
    plain = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    proof = prove(command)
    if not proof.holds:
        raise SystemExit(f"under prove the load ended with {proof.returncode}: {proof}\n{proof.stderr}")
    return {name: summarise(json.loads(output)) for name, output in (("child", plain.stdout), ("prove", proof.stdout))}


def print_table(record: dict[str, Any]) -> None:
    """Print what was found, one line a way; shares are of the same load without a tool."""
    ways = record["ways"]
    print(f"{record['bytes'] / 2**20:.0f} MiB, {record['tensors']} tensors, {record['requests']} requests")
    print(f"{'tool':8}{'seconds':>9}{'share':>8}{'thread':>9}{'share':>8}{'inside':>9}{'share':>8}{'extra':>8}")
    for name, row in ways.items():
        base = ways["child" if name in ("child", "prove") else "none"]
        cells = [
            f"{row[key]:9.3f}{row[key] / base[against]:8.1%}"
            for key, against in (
                ("seconds", "seconds"),
                ("thread_seconds", "thread_seconds"),
                ("inside_seconds", "seconds"),
            )
        ]
        extra = f"{row['extra_seconds'] / base['seconds']:8.1%}" if "extra_seconds" in row else ""
        print(f"{name:8}{''.join(cells)}{extra}")


if __name__ == "__main__":
    main()
