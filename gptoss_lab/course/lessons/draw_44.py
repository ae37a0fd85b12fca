"""The pictures of `44__reuse`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt

from gptoss_lab.course import figures
from gptoss_lab.course.lessons.draw_42 import WAY_NAMES, place, prepare_sizes, read_medians, read_record
from gptoss_lab.moe.parallel import assignments
from gptoss_lab.moe.routing import Routing

WAY_STYLES = {"rebuild": ("wrong", "o-"), "reuse": ("copy", "s-"), "legacy": ("ok", "^--")}


@dataclass(frozen=True)
class Gain:
    """Ratios of recorded medians at one size. `gap_closed` is how much of the way to 3.5.1 reuse has gone."""

    tokens: int
    experts: int
    mode: str
    rebuild_to_reuse: float
    reuse_to_legacy: float | None = None
    gap_closed: float | None = None


def compare_ways(folder: Path, sizes: Sequence[tuple[int, int]], mode: str) -> list[Gain]:
    """Return the ratios of the recorded medians at each (tokens, experts); none, and a line, without a record."""
    record = read_record(folder)
    medians = read_medians(record) if record else {}
    gains = []
    for tokens, experts in sizes if medians else ():
        before, after = (medians[tokens, experts, way, mode] for way in ("rebuild", "reuse"))
        old = medians.get((tokens, experts, "legacy", mode))
        against = () if old is None else (after / old, (before - after) / (before - old))
        gains.append(Gain(tokens, experts, mode, before / after, *against))
    return gains


def draw_ranks(whole: Routing, cut: Routing, local: Routing, first: int) -> None:
    """Draw the rows of all experts three times, each with the expert that is applied to it.

    whole: the routing of all experts. cut: its first slices, read as this rank's own. local: what the rank should
    have. first: the number of this rank's first expert; it owns those from there on.
    """
    wanted = _expert_of_row(whole, 0)
    n_rows = len(whole.col_sorted_indx)
    strips = [
        ("the expert that was picked", wanted, lambda row: "view" if wanted[row] >= first else "buffer"),
        ("rank 1 with reuse", _expert_of_row(cut, first), lambda row: "wrong"),
        ("rank 1 as it should be", _expert_of_row(local, first), lambda row: "ok"),
    ]
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 2.7))
        for level, (title, experts, shade) in enumerate(strips):
            top = 1.7 * level
            ax.text(0, top - 0.15, title, fontsize=10)
            for row in range(n_rows):
                expert = experts.get(row)
                face = "white" if expert is None else figures.colour(shade(row))
                hatch = "////" if expert is not None and shade(row) == "wrong" else ""
                ax.add_patch(plt.Rectangle((row, top), 0.9, 0.9, facecolor=face, edgecolor="#999999", hatch=hatch))
                if expert is not None:
                    label = ax.text(row + 0.45, top + 0.45, expert, ha="center", va="center", fontsize=9)
                    label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
        ax.set(xlim=(0, n_rows), ylim=(1.7 * len(strips) - 0.6, -0.6))
        ax.axis("off")
        theirs = sum(expert < first for expert in wanted.values())
        taken, right = len(_expert_of_row(cut, first)), len(_expert_of_row(local, first))
        figures.show(
            fig,
            f"{n_rows} rows, three times. First with the expert that was picked: {theirs} of rank 0, "
            f"{n_rows - theirs} of rank 1. Then as rank 1 takes them with reuse: it works on {taken} rows of rank 0, "
            f"with experts of its own. Then as it should be: {right} rows of rank 1, with the experts picked.",
            caption="A number is an expert. Blue: rank 0 owns it. Orange: rank 1 does. Hatched: the wrong expert. "
            "Green: the right one. Empty: not computed.",
        )


def _expert_of_row(routing: Routing, first: int) -> dict[int, int]:
    """Return for each computed row the expert applied to it, counted over all ranks."""
    row_of_slot = routing.row_sorted_indx.tolist()
    return {
        row_of_slot[token * routing.n_experts_act + pick]: first + expert
        for token, pick, expert in assignments(routing).tolist()
    }


def _order_in_words(medians: Mapping[tuple[int, int, str, str], float], ways: Sequence[str]) -> str:
    """Say for each mode which way is slower than the next at how many of the sizes."""
    words = []
    for mode in ("graph", "eager"):
        for slow, fast in zip(ways, ways[1:], strict=False):
            pairs = [
                (us, medians[n, count, fast, mode])
                for (n, count, w, m), us in medians.items()
                if (w, m) == (slow, mode)
            ]
            above = sum(one > other for one, other in pairs)
            words.append(f"{mode}: {WAY_NAMES[slow]} above {WAY_NAMES[fast]} at {above} of {len(pairs)} sizes")
    return "; ".join(words) + "."


def draw_speed(folder: Path) -> None:
    """Plot recorded times of every way by size: CUDA graphs above, eager below, a column for each number of experts."""
    record = read_record(folder)
    if record is None:
        return
    medians = read_medians(record)
    tokens, experts = sorted({size[0] for size in medians}), sorted({size[1] for size in medians})
    ways = [way for way in WAY_STYLES if any(size[2] == way for size in medians)]
    with figures.style():
        fig, axes = plt.subplots(
            2, len(experts), figsize=(8, 5.2), sharey="row", sharex=True, squeeze=False, layout="constrained"
        )
        for line, mode in zip(axes, ("graph", "eager"), strict=True):
            for ax, count in zip(line, experts, strict=True):
                for way in ways:
                    shade, dash = WAY_STYLES[way]
                    sizes = [(n, medians.get((n, count, way, mode))) for n in tokens]
                    taken = [(n, median) for n, median in sizes if median is not None]
                    ax.plot(*zip(*taken, strict=True), dash, color=figures.colour(shade), label=WAY_NAMES[way])
                prepare_sizes(ax, tokens, f"{'CUDA graph' if mode == 'graph' else 'eager'}, {count} experts")
                ax.set_xlabel("tokens" if mode == "eager" else "")
            line[0].set_ylabel("microseconds")
        fig.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ways))
        legacy = record.get("legacy") or {}
        other = f" 3.5.1 under triton {legacy['provenance']['versions']['triton']}." if legacy.get("provenance") else ""
        figures.show(
            fig,
            f"Recorded times of {', '.join(WAY_NAMES[way] for way in ways)} for {tokens[0]} to {tokens[-1]} tokens "
            f"and {' and '.join(map(str, experts))} experts, logarithmic, with CUDA graphs above and eager below. "
            f"{_order_in_words(medians, ways)}",
            caption=f"Recorded on {place(record['provenance'])}.{other} Medians, topk included.",
        )
