"""The pictures of `48__one_launch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt

from gptoss_lab.course import figures
from gptoss_lab.course.lessons.draw_42 import prepare_sizes
from gptoss_lab.course.lessons.draw_44 import WAY_STYLES
from gptoss_lab.course.lessons.record_48 import WAY_NAMES, Record
from gptoss_lab.course.lessons.waits_48 import Wait, find_levels, find_longest_chain

STYLES = WAY_STYLES | {"route": ("limit", "D-")}
HEIGHTS = {2: 0.6, 6: 0.6, 7: 0.6}  # the others stand at 2
STEP, HALF = 2.1, 0.58  # from column to column, and half of a box
SHORT = {
    "_topk_forward": "topk",
    "aten.zeros": "zeros",
    "_sum_bitmatrix_rows": "count",
    "_bitmatrix_metadata_compute_stage1": "stage 1",
    "_bitmatrix_metadata_compute_stage2": "stage 2",
    "_ragged_tensor_metadata_memset": "offsets",
    "_ragged_tensor_metadata_compute": "blocks",
    "aten.index": "index",
}


def draw_waits(names: Sequence[str], waits: Sequence[Wait]) -> None:
    """Draw the nine launches as boxes, those that could start together in one column, an arrow for each wait.

    names: the launches, as they come. Arrows of the longest chain are thick.
    """
    levels, chain = find_levels(waits, len(names)), find_longest_chain(waits, len(names))
    steps = set(zip(chain, chain[1:], strict=False))
    place = {n: (STEP * levels[n - 1], HEIGHTS.get(n, 2)) for n in range(1, len(names) + 1)}
    with figures.style():
        fig, ax = plt.subplots(figsize=(8.6, 3.1))
        for number, (x, y) in place.items():
            on_chain = number in chain
            face = figures.colour("buffer" if on_chain else "mark")
            box = plt.Rectangle((x - HALF, y - 0.28), 2 * HALF, 0.56, facecolor=face, edgecolor="#555555", zorder=3)
            ax.add_patch(box)
            ax.text(x, y, f"{number} {SHORT[names[number - 1]]}", ha="center", va="center", fontsize=9, zorder=4)
        for wait in waits:
            draw_arrow(ax, place[wait.writer], place[wait.reader], wait, (wait.writer, wait.reader) in steps)
        ax.set(xlim=(-0.7, STEP * max(levels) + 0.7), ylim=(0.2, 3.75))
        ax.axis("off")
        others = [n for n in place if n not in chain]
        figures.show(
            fig,
            f"{len(names)} boxes in {max(levels) + 1} columns. Launches {', '.join(map(str, chain))} form the longest "
            f"chain: each reads what the one before it wrote. Launches {', '.join(map(str, others))} stand beside it.",
            caption="A box is a launch, an arrow what it reads. Blue, with thick arrows: the longest chain. "
            "Yellow: launches beside it.",
        )


def draw_arrow(ax: Any, start: tuple[float, float], end: tuple[float, float], wait: Wait, thick: bool) -> None:
    """An arrow with what is read beside it; one over more than a column goes in a bow above the boxes."""
    bow = -0.2 if start[1] == end[1] and end[0] - start[0] > STEP + 0.1 else 0.0
    if bow:
        ends = (start[0] + 0.1, start[1] + 0.3), (end[0] - 0.1, end[1] + 0.3)
    else:
        ends = (start[0] + HALF, start[1]), (end[0] - HALF, end[1])
    arrow = {"arrowstyle": "-|>", "color": figures.colour("text" if thick else "muted"), "shrinkA": 0, "shrinkB": 0}
    arrow |= {"lw": 2.2 if thick else 1.1, "connectionstyle": f"arc3,rad={bow}"}
    ax.annotate("", ends[1], ends[0], arrowprops=arrow, zorder=2)
    middle = (ends[0][0] + ends[1][0]) / 2
    height = (ends[0][1] + ends[1][1]) / 2 - 0.5 * bow * (ends[1][0] - ends[0][0])
    if start[1] == end[1] and not bow:
        height += 0.2 if start[1] > 1 else -0.2
    label = ax.text(middle, height, wait.what, ha="center", va="center", fontsize=8, zorder=5)
    label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})


def draw_orders(order: Sequence[int], seen: Mapping[str, tuple[int, int]]) -> None:
    """Draw programs as bars that end in `order`, and for each rule who adds up, and how many parts it finds.

    order: the programs, the first to finish first. seen: for each rule the program that adds up and what it finds.
    """
    ends = {program: 2 + place for place, program in enumerate(order)}
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 0.46 * len(order) + 1.1))
        for program, end in ends.items():
            ax.barh(program, end - 0.3 * program, left=0.3 * program, height=0.55, color=figures.colour("buffer"))
        for (rule, (program, found)), role in zip(seen.items(), ("wrong", "ok"), strict=True):
            end = ends[program]
            ax.plot(end, program, "v" if role == "wrong" else "o", color=figures.colour(role), markersize=10, zorder=3)
            note = ax.text(end + 0.15, program, f"{rule}: finds {found} of {len(order)}", va="center", fontsize=10)
            note.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
            ax.axvline(end, color=figures.colour(role), linestyle="--" if role == "wrong" else "-", linewidth=1)
        ax.set_yticks(range(len(order)), [f"program {program}" for program in range(len(order))])
        ax.set(xlabel="time", xlim=(0, max(ends.values()) + 3.2), ylim=(len(order) - 0.4, -0.6))
        ax.set_xticks([])
        told = "; ".join(f"{rule}, program {program}, finds {found}" for rule, (program, found) in seen.items())
        figures.show(
            fig,
            f"{len(order)} programs as bars over time, which end in the order {', '.join(map(str, order))}. "
            f"Of {len(order)} parts {told}.",
            caption="A bar ends where the program has written its part. A mark shows where somebody adds up.",
        )


def draw_race() -> None:
    """Draw two warps that hold the same elements and store in place, without a barrier and with one."""
    with figures.style():
        fig, axes = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True, layout="constrained")
        for ax, barrier in zip(axes, (False, True), strict=True):
            slow = 5.0 if not barrier else 1.6
            store = 3.0 if not barrier else 3.4
            boxes = [(1, 0.2, "load", "buffer"), (1, store, "store", "copy"), (0, slow, "load", "buffer")]
            for lane, start, text, role in boxes:
                face = "wrong" if (lane, text) == (0, "load") and not barrier else role
                hatch = "////" if face == "wrong" else ""
                ax.barh(lane, 1.2, left=start, color=figures.colour(face), height=0.6, hatch=hatch, edgecolor="white")
                label = ax.text(start + 0.6, lane, text, ha="center", va="center", fontsize=10)
                label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
            if barrier:
                ax.axvline(3.1, color=figures.colour("text"), linewidth=2)
                ax.text(3.2, -0.45, "barrier", fontsize=9, va="center")
            ax.set_yticks([1, 0], ["fast warp", "slow warp"])
            ax.set(xlim=(0, 7), ylim=(-0.7, 1.5))
            ax.set_xticks([])
            ax.set_title("with a barrier" if barrier else "without", fontsize=11)
        axes[1].set_xlabel("time")
        figures.show(
            fig,
            "Two warps over time, twice. Without a barrier the fast warp loads and stores before the slow one loads: "
            "the slow one finds what was stored. With a barrier both have loaded before one stores.",
            caption="Hatched: a load that comes too late.",
        )


def draw_speed(record: Record | None, mode: str = "graph") -> None:
    """Plot the recorded times of every way by number of tokens, a panel for each number of experts."""
    if record is None:
        return
    tokens, experts, ways = record.tokens(), record.experts(), record.ways()
    with figures.style():
        fig, axes = plt.subplots(1, len(experts), figsize=(8, 3.5), sharey=True, squeeze=False, layout="constrained")
        for ax, count in zip(axes[0], experts, strict=True):
            for way in ways:
                role, dash = STYLES[way]
                sizes = [(n, record.medians.get((n, count, way, mode))) for n in tokens]
                taken = [(n, median) for n, median in sizes if median is not None]
                ax.plot(*zip(*taken, strict=True), dash, color=figures.colour(role), label=WAY_NAMES[way], markersize=5)
            prepare_sizes(ax, tokens, f"CUDA graph, {count} experts" if mode == "graph" else f"eager, {count} experts")
        axes[0][0].set_ylabel("microseconds")
        fig.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ways))
        figures.show(fig, describe_speed(record, mode), caption=record.where)


def describe_speed(record: Record, mode: str) -> str:
    """Say up to how many tokens `route` is the fastest of the recorded ways."""
    words = []
    for count in record.experts():
        sizes = [n for n in record.tokens() if (n, count, "route", mode) in record.medians]
        best = [
            n
            for n in sizes
            if record.medians[n, count, "route", mode]
            <= min(us for (m, c, _, kind), us in record.medians.items() if (m, c, kind) == (n, count, mode))
        ]
        words.append(f"with {count} experts route is the fastest at {len(best)} of {len(sizes)} sizes")
    names = ", ".join(WAY_NAMES[way] for way in record.ways())
    tokens = record.tokens()
    return f"Recorded times of {names} for {tokens[0]} to {tokens[-1]} tokens, logarithmic: {'; '.join(words)}."
