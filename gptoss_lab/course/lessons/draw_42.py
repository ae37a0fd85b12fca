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


def live_or_recorded(
    calls: Mapping[str, Callable[[], Any]], folder: Path, tokens: int, experts: int
) -> Timelines:
    """Take the timelines of `calls` on this machine's GPU, or read those recorded for the same size.

    folder: holds the record, `timeline.json`, or else `routing.json`. Without a GPU and without a record the
    result is empty, and a line says how to take one.
    """
    if torch.cuda.is_available() and not interpreting():
        runs = {name: timeline(call) for name, call in calls.items()}
        return Timelines(runs, f"Taken just now on {torch.cuda.get_device_name()}.")
    record = read_record(folder / "timeline.json", quiet=True) or read_record(folder / "routing.json")
    if record is None:
        return Timelines()
    lines = record.get("timelines") or []
    runs = {
        line["way"]: [Launch(**launch) for launch in line["launches"]]
        for line in lines
        if (line["tokens"], line["experts"]) == (tokens, experts)
    }
    runs |= {way: [Launch(**launch) for launch in record[way]] for way in calls if isinstance(record.get(way), list)}
    if missing := [way for way in calls if way not in runs]:
        raise KeyError(f"the record has no timeline of {missing} for {tokens} x {experts}: take it anew, {RECORD_IT}")
    return Timelines({way: runs[way] for way in calls}, f"Recorded on {place(record['provenance'])}.")


def read_record(path: Path, quiet: bool = False) -> dict[str, Any] | None:
    """Return the JSON at `path`. Where there is no file, None, and unless `quiet` a line that says what to do."""
    if path.exists():
        return json.loads(path.read_text())
    if not quiet:
        print(f"There is no record {path.parent.name}/{path.name}. On a GPU: {RECORD_IT}")
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
            arc = dict(arrowstyle="-", connectionstyle="arc3,rad=0.25", color=figures.colour("muted"))
            ends = (-0.05, first + step + 0.5), (-0.05, second + step + 0.5)
            ax.annotate("", ends[0], ends[1], arrowprops=arc)
        ax.set(xlim=(-1.6, 7.6), ylim=(len(lines), 0))
        ax.axis("off")
        counts = ", ".join(f"{stage} {len(names)}" for stage, names in table.items())
        figures.show(
            fig,
            f"{len(lines)} launches from top to bottom, grouped by stage: {counts}. Lines tie launches "
            f"{first + 1} to {first + length} to launches {second + 1} to {second + length}, which have the same names.",
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
                ax.barh(0.2, launch.lasted_us, 0.4, launch.started_us, color=shade, align="center")
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
            "when the device ran it. The bars are slivers with wide gaps between them: the device waits for the host.",
            caption=timelines.where,
        )


def draw_modes(folder: Path) -> None:
    """Plot recorded times of `rebuild` by size, eager and as a CUDA graph, a panel for each number of experts."""
    record = read_record(folder / "routing.json")
    if record is None:
        return
    medians = read_medians(record)
    tokens = sorted({size[0] for size in medians})
    experts = sorted({size[1] for size in medians})
    with figures.style():
        fig, axes = plt.subplots(1, len(experts), figsize=(8, 3), sharey=True, squeeze=False, layout="constrained")
        for ax, count in zip(axes[0], experts, strict=True):
            for mode, shade, dash in (("eager", "view", "o--"), ("graph", "copy", "s-")):
                taken = [(n, medians[n, count, "rebuild", mode]) for n in tokens if (n, count, "rebuild", mode) in medians]
                ax.plot(*zip(*taken, strict=True), dash, color=figures.colour(shade), label=mode)
            prepare_sizes(ax, tokens, f"{count} experts")
        axes[0][0].set_ylabel("microseconds")
        axes[0][0].legend()
        figures.show(
            fig,
            f"Recorded time of topk and rebuild against the number of tokens, {tokens[0]} to {tokens[-1]}, for "
            f"{' and '.join(map(str, experts))} experts, both axes logarithmic. The eager line lies far above that of "
            "the CUDA graph, and both are nearly flat.",
            caption=f"Recorded on {place(record['provenance'])}. Medians, topk included.",
        )


def prepare_sizes(ax: Any, tokens: Sequence[int], title: str) -> None:
    """Set logarithmic axes with the numbers of tokens below and plain numbers of microseconds."""
    ax.set(xscale="log", yscale="log", xlabel="tokens", title=title)
    ax.set_xticks(tokens, [str(n) for n in tokens], fontsize=8, rotation=45)
    ax.minorticks_off()
    ticks = [2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
    low, high = ax.get_ylim()
    shown = [tick for tick in ticks if low <= tick <= high]
    ax.set_yticks(shown, [str(tick) for tick in shown])
