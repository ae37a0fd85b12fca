"""Time the ways of loading against the bare stream, and measure their peaks of memory.

    python benchmarks/loading.py                                     # a generated checkpoint of 256 MiB
    python benchmarks/loading.py --record data/cpu/loading.json      # and keep the result, with its provenance
    python benchmarks/loading.py --folder FOLDER --limit 1158266880

Values come before times: every way loads once and is compared with the files, and the run ends if a way that
should be right is wrong. Then the ways take turns, so that a slow minute of the machine hits all of them, and
the median counts. Peaks come from one process a way. The files are in the page cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gptoss_lab.model import Config, GptOss
from gptoss_lab.provenance import installed_version, provenance, write_record
from gptoss_lab.weights import memory
from gptoss_lab.weights.checkpoint import Checkpoint, read_checkpoint, write_random_checkpoint
from gptoss_lab.weights.limits import parse_size
from gptoss_lab.weights.loading import clone_on_device, drain, host_copies, place
from gptoss_lab.weights.report import Weights
from gptoss_lab.weights.streaming import plan, stream

MOST_SAMPLES = 200  # of memory over time, a way


def read_bare(model: GptOss, weights: Weights) -> None:
    """Ask for every tensor and drop it: what the stream alone costs."""
    for _ in weights:
        pass


def copy_in_bare(model: GptOss, weights: Weights) -> None:
    """`place` without names checked and counts kept: what the recorder costs."""
    for name, tensor in weights:
        model.copy_in(name, tensor)


WAYS: dict[str, Callable] = {
    "bare_stream": read_bare,
    "bare_copies": copy_in_bare,
    "drain": drain,
    "clone_on_device": clone_on_device,
    "host_copies": host_copies,
    "place": place,
}


def main() -> None:
    """Measure, print a table, and write the record if one was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a gpt-oss checkpoint; left out: one of 256 MiB is generated")
    parser.add_argument("--limit", default="64MiB", help="the streamer's memory limit (default: 64MiB)")
    parser.add_argument("--rounds", type=int, default=7, help="how often each way is timed (default: 7)")
    parser.add_argument("--record", type=Path, help="write the result as JSON to this file")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: give 1 or more")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch) / "checkpoint"
        if arguments.folder is None:
            write_random_checkpoint(folder, memory.MEASURED, shard_limit=100_000_000)
        record = measure_all(folder, parse_size(arguments.limit), arguments.rounds)
        record["checkpoint"]["generated"] = arguments.folder is None
    print_table(record)
    if arguments.record:
        write_record(arguments.record, record)


def measure_all(folder: Path, limit: int, rounds: int) -> dict[str, Any]:
    """Check, time and measure every way; returns the record."""
    checkpoint = read_checkpoint(folder)
    model = GptOss(Config.from_file(folder), torch.bfloat16)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    wrong = check_values(checkpoint, model, limit)
    seconds = time_in_turns(checkpoint, model, limit, rounds)
    ways = {}
    for way in WAYS:
        ways[way] = {
            "seconds": statistics.median(seconds[way]),
            "fastest": min(seconds[way]),
            "slowest": max(seconds[way]),
        } | ({"wrong": wrong[way]} if way in wrong else {})
        if way in memory.WAYS:
            ways[way] |= measure_memory(folder, way, limit)
    origin = provenance(versions={name: installed_version(name) for name in ("runai-model-streamer", "safetensors")})
    return origin | {
        "machine": describe_machine(),
        "checkpoint": {
            "bytes": checkpoint.total_bytes,
            "tensors": len(checkpoint.tensors),
            "not_expert_bytes": sum(
                stored.spec.nbytes for stored in checkpoint.tensors.values() if not stored.spec.is_expert
            ),
        },
        "memory_limit": limit,
        "requests": len(plan(checkpoint, limit).requests),
        "rounds": rounds,
        "ways": ways,
    }


def describe_machine() -> str:
    """The processor's name and the number of cores that this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def run(way: str, checkpoint: Checkpoint, model: GptOss, limit: int) -> float:
    """Load once; returns the seconds."""
    start = time.perf_counter()
    WAYS[way](model, stream(checkpoint, memory_limit=limit))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def check_values(checkpoint: Checkpoint, model: GptOss, limit: int) -> dict[str, int]:
    """Count each way's wrong tensors; SystemExit if the count is not the one that the plan tells.

    It also touches every page of the model, so that no timed run pays for them.
    """
    planned = len(plan(checkpoint, limit).overwritten)
    wrong = {}
    for way in (way for way in WAYS if way != "bare_stream"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        run(way, checkpoint, model, limit)
        wrong[way] = memory.count_wrong(model, checkpoint)
        expected = planned if way == "drain" else 0
        if wrong[way] != expected:
            raise SystemExit(f"{way}: {wrong[way]} wrong tensors, expected {expected}: no times are taken")
    return wrong


def time_in_turns(checkpoint: Checkpoint, model: GptOss, limit: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, one a round; each round starts with another way."""
    ways = list(WAYS)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        shift = number % len(ways)
        for way in ways[shift:] + ways[:shift]:
            seconds[way].append(run(way, checkpoint, model, limit))
    return seconds


def measure_memory(folder: Path, way: str, limit: int) -> dict[str, Any]:
    """Peaks and a thinned series of (seconds, host bytes, device bytes), from a process of its own."""
    result = memory.measure(folder, way, limit)
    step = -(-len(result.samples) // MOST_SAMPLES)
    return {
        "host_peak": result.host_peak,
        "device_peak": result.device_peak,
        "memory_device": result.device,
        "samples": [*result.samples[::step], result.samples[-1]],
    }


def print_table(record: dict[str, Any]) -> None:
    """Print what was found, one line a way."""
    size = record["checkpoint"]["bytes"]
    print(f"{size / 2**20:.0f} MiB, limit {record['memory_limit']}, {record['requests']} requests")
    print(f"{record['device']}; {record['machine']}")
    print(f"{'way':18}{'seconds':>9}{'GB/s':>7}{'wrong':>7}{'host MiB':>10}{'device MiB':>12}")
    for way, row in record["ways"].items():
        peaks = "".join(
            f"{row[key] / 2**20:{width}.0f}" if key in row else " " * width
            for key, width in (("host_peak", 10), ("device_peak", 12))
        )
        rate = size / row["seconds"] / 1e9
        print(f"{way:18}{row['seconds']:9.3f}{rate:7.2f}{row.get('wrong', ''):>7}{peaks}")


if __name__ == "__main__":
    main()
