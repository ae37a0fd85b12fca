"""The pictures of `16__the_fix`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from gptoss_lab.course import figures
from gptoss_lab.weights.memory import MemoryRun


def draw_memory(runs: Sequence[MemoryRun]) -> None:
    """Plot host and device memory over the course of each load, one panel a way, on common axes."""
    mib = 2**20
    with figures.style():
        fig, axes = plt.subplots(len(runs), 1, figsize=(8, 1.35 * len(runs) + 0.6), sharey=True, layout="constrained")
        for ax, run in zip(axes, runs, strict=True):
            seconds, host, device = zip(*run.samples, strict=True)
            done = [100 * second / max(seconds) for second in seconds]
            ax.plot(done, [size / mib for size in device], color=figures.colour("copy"), label=f"device ({run.device})")
            ax.plot(done, [size / mib for size in host], "--", color=figures.colour("view"), label="host")
            ax.set(ylabel="MiB", xlim=(0, 100))
            verdict = f"{run.wrong} of {run.tensors} tensors wrong" if run.wrong else "all tensors right"
            ax.set_title(f"{run.way}: {verdict}", fontsize=11)
        axes[0].legend(loc="upper left", ncols=2)
        axes[-1].set_xlabel("course of the load, %")
        ways = ", ".join(run.way for run in runs)
        figures.show(
            fig,
            f"Memory during {len(runs)} loads ({ways}), one panel each: the device's as a solid line, the host's "
            "dashed. The device ends at the size of the model, and clone_on_device rises above that. The host's line "
            "is flat but for copy_all_on_host, which climbs to the whole checkpoint, and host_copies, which climbs by "
            "a third.",
        )


def draw_speed(record: Path) -> None:
    """Plot the recorded seconds of each way of loading beside the bare stream, and say where they were taken."""
    measured = json.loads(record.read_text())
    ways = measured["ways"]
    bare = ways["bare_stream"]["seconds"]
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 0.5 * len(ways) + 1.2))
        for place, (way, numbers) in enumerate(reversed(ways.items())):
            ratio = numbers["seconds"] / bare
            ax.barh(place, ratio, color=figures.colour("buffer" if way == "bare_stream" else "copy"))
            spread = [[ratio - numbers["fastest"] / bare], [numbers["slowest"] / bare - ratio]]
            ax.errorbar(ratio, place, xerr=spread, color=figures.colour("text"), capsize=3, linewidth=1)
            ax.text(numbers["slowest"] / bare + 0.04, place, f"{ratio:.2f}", va="center")
        ax.set_yticks(range(len(ways)), list(reversed(ways)))
        ax.set_xlim(0, 1.15 * max(numbers["slowest"] for numbers in ways.values()) / bare)
        ax.set_xlabel("seconds, as a multiple of the bare stream (median, fastest, slowest)")
        where = f"{measured['device']}, {measured['date']}, streamer {measured['versions']['runai-model-streamer']}"
        ratios = ", ".join(f"{way} {numbers['seconds'] / bare:.2f}" for way, numbers in ways.items())
        figures.show(
            fig,
            f"Bars of the recorded time of each way of loading as a multiple of the bare stream: {ratios}.",
            caption=f"Recorded on {where}; {measured['checkpoint']['bytes']:,} bytes, {measured['rounds']} rounds.",
        )
