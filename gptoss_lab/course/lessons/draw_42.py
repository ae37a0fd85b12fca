"""The pictures of `42__twenty_launches`, and the records that were taken on a GPU for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from gptoss_lab.course import figures
from gptoss_lab.moe.generations import interpreting
from gptoss_lab.moe.launches import Launch, timeline

STAGE_COLOURS = {
    "topk": "blue",
    "the caller's cast": "orange",
    "pack again": "vermillion",
    "second SparseMatrix": "purple",
    "ragged metadata": "green",
    "gate_scal": "sky",
}
RECORD_IT = "python benchmarks/routing.py --out data/h200/routing.json"
WAY_NAMES = {"rebuild": "rebuild", "reuse": "reuse", "legacy": "3.5.1's routing()"}


@dataclass(frozen=True)
class Timelines:
    """Launches with their times, by the name of the call, and where and when they were taken."""

    runs: dict[str, list[Launch]] = field(default_factory=dict)
    where: str = ""


def live_or_recorded(calls: Mapping[str, Callable[[], Any]], folder: Path, tokens: int, experts: int) -> Timelines:
    """Take the timelines of `calls` on this machine's GPU, or read those recorded in `folder` for the same size.

    Without a GPU and without a record the result is empty, and a line says how to take one.
    """
    if torch.cuda.is_available() and not interpreting():
        runs = {name: timeline(call) for name, call in calls.items()}
        return Timelines(runs, f"Taken just now on {torch.cuda.get_device_name()}, under the profiler.")
    record = read_record(folder)
    if record is None:
        return Timelines()
    runs = {way: recorded_timeline(record, tokens, experts, way) for way in calls}
    return Timelines(runs, f"Recorded on {place(record['provenance'])}, under the profiler.")


def recorded_timeline(record: Mapping[str, Any], tokens: int, experts: int, way: str) -> list[Launch]:
    """Return the launches of one call from the record. KeyError, with the remedy, if it was not recorded."""
    for line in record.get("timelines") or []:
        if (line["tokens"], line["experts"], line["way"]) == (tokens, experts, way):
            return [Launch(**launch) for launch in line["launches"]]
    raise KeyError(f"the record has no timeline of {way} for {tokens} x {experts}: take it anew, {RECORD_IT}")


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record `routing.json` in `folder`. Without one, None, and a line that says how to take it."""
    path = folder / "routing.json"
    if path.exists():
        return json.loads(path.read_text())
    print(f"There is no record {folder.name}/{path.name}. On a GPU: {RECORD_IT}")
    return None


def place(provenance: Mapping[str, Any]) -> str:
    """Say in words where a record was taken."""
    versions = provenance["versions"]
    return f"{provenance['device']}, {provenance['date']}, torch {versions['torch']}, triton {versions['triton']}"


def read_medians(record: Mapping[str, Any]) -> dict[tuple[int, int, str, str], float]:
    """Return the median microseconds by (tokens, experts, way, mode).

    Ways are "rebuild", "reuse" and, where the record has it, "legacy"; modes are "graph" and "eager". Where
    the ways took turns with 3.5.1's, those medians are taken, since they are the ones to compare.
    """
    legacy = record.get("legacy") or {}
    lines = (record.get("timings") or []) + (legacy.get("timings") or [])
    return {(line["tokens"], line["experts"], line["way"], line["mode"]): line["median_us"] for line in lines}


def device_time(folder: Path, table: Mapping[str, Sequence[str]], experts: Sequence[int]) -> dict[str, list[float]]:
    """Return the recorded microseconds on the device of each stage of `rebuild`, one token, for each of `experts`.

    table: the launches of each stage, in order. Empty, with a line, without a record.
    """
    record = read_record(folder)
    if record is None:
        return {}
    found: dict[str, list[float]] = {stage: [] for stage in table}
    for count in experts:
        run = iter(recorded_timeline(record, 1, count, "rebuild"))
        for stage, names in table.items():
            part = [next(run) for _ in names]
            if [launch.name for launch in part] != list(names):
                raise ValueError(f"the record of {count} experts has other launches in {stage!r}: take it anew")
            found[stage].append(sum(launch.lasted_us for launch in part))
    return found


def draw_list(table: Mapping[str, Sequence[str]], repeat: tuple[int, int, int]) -> None:
    """List the launches from top to bottom with their stages, and tie the run that occurs twice together."""
    lines = [(stage, name) for stage, names in table.items() for name in names]
    first, second, length = repeat
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 0.25 * len(lines) + 0.2))
        for place_, (stage, name) in enumerate(lines):
            twice = any(start <= place_ < start + length for start in (first, second))
            ax.add_patch(
                plt.Rectangle(
                    (0, place_ + 0.1),
                    0.25,
                    0.8,
                    facecolor=figures.colour(STAGE_COLOURS[stage]),
                    hatch="////" if twice else "",
                    edgecolor="white",
                )
            )
            ax.text(0.35, place_ + 0.5, f"{place_ + 1:>2}  {name}", va="center", family="DejaVu Sans Mono", fontsize=9)
        top = 0
        for stage, names in table.items():
            middle = top + len(names) / 2
            ax.plot([5.3, 5.3], [top + 0.15, top + len(names) - 0.15], color=figures.colour(STAGE_COLOURS[stage]), lw=4)
            ax.text(5.45, middle, f"{stage}: {len(names)}", va="center", fontsize=10)
            top += len(names)
        for step in range(length):
            arc = dict(arrowstyle="-", connectionstyle="arc3,rad=-0.25", color=figures.colour("muted"))
            ends = (-0.05, first + step + 0.5), (-0.05, second + step + 0.5)
            ax.annotate("", ends[0], ends[1], arrowprops=arc)
        ax.set(xlim=(-1.6, 7.6), ylim=(len(lines), 0))
        ax.axis("off")
        counts = ", ".join(f"{stage} {len(names)}" for stage, names in table.items())
        figures.show(
            fig,
            f"{len(lines)} launches from top to bottom, grouped by stage: {counts}. Lines tie launches "
            f"{first + 1} to {first + length} to launches {second + 1} to {second + length}, which have the same "
            "names.",
        )


def draw_timelines(timelines: Timelines, stages_of: Mapping[str, Sequence[str]]) -> None:
    """Draw when the host asked for each kernel and when the device ran it, a panel for each call.

    stages_of: for each call the stage of each of its launches, for the colours.
    """
    if not timelines.runs:
        return
    with figures.style():
        fig, axes = plt.subplots(
            len(timelines.runs), 1, figsize=(8, 1.6 * len(timelines.runs) + 0.9), sharex=True, layout="constrained"
        )
        for ax, (way, run) in zip(axes, timelines.runs.items(), strict=True):
            for launch, stage in zip(run, stages_of[way], strict=True):
                shade = figures.colour(STAGE_COLOURS[stage])
                ax.plot([launch.launched_us, launch.started_us], [1, 0.4], color=shade, linewidth=0.8)
                ax.plot(launch.launched_us, 1, "v", color=shade, markersize=7)
                # The edge keeps a bar visible that is thinner than a pixel.
                bar = plt.Rectangle((launch.started_us, 0), launch.lasted_us, 0.4, facecolor=shade)
                bar.set(edgecolor=shade, linewidth=1)
                ax.add_patch(bar)
            ax.set_yticks([0.2, 1], ["device runs", "host launches"])
            ax.set_ylim(-0.1, 1.25)
            ax.tick_params(axis="y", length=0)
            ax.set_title(f"{way}: {len(run)} launches", fontsize=11)
        axes[-1].set_xlabel("microseconds since the first launch")
        used = [stage for stage in STAGE_COLOURS if any(stage in stages for stages in stages_of.values())]
        patches = [plt.Rectangle((0, 0), 1, 1, color=figures.colour(STAGE_COLOURS[stage])) for stage in used]
        fig.legend(patches, used, loc="outside lower center", ncols=3, fontsize=9)
        counts = ", ".join(f"{way} {len(run)}" for way, run in timelines.runs.items())
        figures.show(
            fig,
            f"Launches over time ({counts}), one panel a call. Triangles mark when the host asked for a kernel, bars "
            "when the device ran it. The bars are no more than hairlines with wide gaps between them: the device "
            "waits for the host.",
            caption=timelines.where,
        )


def draw_modes(folder: Path) -> None:
    """Plot recorded times of `rebuild` by size, eager and as a CUDA graph, a panel for each number of experts."""
    record = read_record(folder)
    if record is None:
        return
    medians = read_medians(record)
    tokens = sorted({size[0] for size in medians})
    experts = sorted({size[1] for size in medians})
    with figures.style():
        fig, axes = plt.subplots(1, len(experts), figsize=(8, 3), sharey=True, squeeze=False, layout="constrained")
        for ax, count in zip(axes[0], experts, strict=True):
            for mode, shade, dash in (("eager", "view", "o--"), ("graph", "copy", "s-")):
                taken = [
                    (n, medians[n, count, "rebuild", mode]) for n in tokens if (n, count, "rebuild", mode) in medians
                ]
                ax.plot(*zip(*taken, strict=True), dash, color=figures.colour(shade), label=mode)
            prepare_sizes(ax, tokens, f"{count} experts")
        axes[0][0].set_ylabel("microseconds")
        axes[0][0].legend()
        figures.show(
            fig,
            f"Recorded time of topk and rebuild against the number of tokens, {tokens[0]} to {tokens[-1]}, for "
            f"{' and '.join(map(str, experts))} experts, both axes logarithmic. The eager line lies far above that of "
            "the CUDA graph, and both rise little with the number of tokens.",
            caption=f"Recorded on {place(record['provenance'])}. Medians, topk included.",
        )


def prepare_sizes(ax: Any, tokens: Sequence[int], title: str) -> None:
    """Set logarithmic axes with the numbers of tokens below and plain numbers of microseconds."""
    ax.set(xscale="log", yscale="log", xlabel="tokens", title=title)
    ax.set_xticks(tokens, [str(n) for n in tokens], fontsize=8, rotation=45)
    ax.minorticks_off()
    low, high = ax.get_ylim()
    leading = (1, 2, 3, 5, 7) if high / low < 5 else (1, 2, 5)
    ticks = [first * 10**power for power in range(5) for first in leading if low <= first * 10**power <= high]
    ax.set_yticks(ticks, [str(tick) for tick in ticks])
