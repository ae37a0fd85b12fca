"""The pictures of `46__what_parity_misses`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from gptoss_lab.course import figures


def draw_shared_tail() -> None:
    """Draw both ways to the metadata as boxes: they meet in one function, and the test looks behind it."""
    with figures.style():
        fig, ax = plt.subplots(figsize=(8.6, 2.9))
        boxes = {
            "topk": (0.0, 1.0, "topk", "buffer"),
            "pack": (2.2, 2.0, "pack bits,\nSparseMatrix", "buffer"),
            "tail": (5.0, 1.0, "the tail:\nreuse()", "wrong"),
            "one": (7.8, 2.0, "Routing\nof rebuild", "buffer"),
            "two": (7.8, 0.0, "Routing\nof reuse", "buffer"),
        }
        for x, y, text, role in boxes.values():
            hatch = "//" if role == "wrong" else None
            shape = plt.Rectangle(
                (x, y), 1.6, 0.8, facecolor="white", edgecolor=figures.colour(role), hatch=hatch, lw=2
            )
            ax.add_patch(shape)
            pad = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            ax.text(x + 0.8, y + 0.4, text, ha="center", va="center", fontsize=10, bbox=pad)
        for start, end, style in (
            ((1.6, 1.5), (2.2, 2.3), "-"),
            ((3.8, 2.3), (5.0, 1.6), "-"),
            ((1.6, 1.3), (5.0, 1.3), "--"),
            ((6.6, 1.5), (7.8, 2.3), "-"),
            ((6.6, 1.3), (7.8, 0.5), "--"),
        ):
            arrow = {"arrowstyle": "->", "linestyle": style, "color": figures.colour("text"), "linewidth": 1.5}
            ax.annotate("", end, start, arrowprops=arrow)
        ax.annotate(
            "", (8.6, 2.0), (8.6, 0.8), arrowprops={"arrowstyle": "<->", "color": figures.colour("ok"), "lw": 2}
        )
        ax.text(8.5, 1.4, "equal?", ha="right", va="center", color=figures.colour("ok"), fontsize=10)
        ax.set(xlim=(-0.1, 9.5), ylim=(-0.15, 3.0))
        ax.axis("off")
        figures.show(
            fig,
            "Two paths from topk: rebuild, solid, by way of packed bits and a second SparseMatrix; reuse, dashed, "
            "directly. Both run through one hatched box, the tail. The test compares the two results behind that box.",
        )


def draw_seen(seen: Mapping[str, Mapping[str, bool]], healthy: str = "no fault") -> None:
    """Draw a table of faults by checks: which check sees which fault. `healthy` names the line without a fault."""
    faults, checks = list(seen), list(next(iter(seen.values())))
    with figures.style():
        fig, ax = plt.subplots(figsize=(8.6, 0.55 * len(faults) + 0.9))
        for line, fault in enumerate(faults):
            for column, check in enumerate(checks):
                alarm, right = seen[fault][check], seen[fault][check] == (fault != healthy)
                face = figures.colour("ok") if right else "white"
                look = {"facecolor": face, "edgecolor": figures.colour("ok" if right else "wrong")}
                ax.add_patch(plt.Rectangle((column + 0.04, line + 0.08), 0.92, 0.84, linewidth=1.5, **look))
                text = ("sees it" if fault != healthy else "false alarm") if alarm else "passes"
                colour = "white" if right else figures.colour("text")
                ax.text(column + 0.5, line + 0.5, text, ha="center", va="center", color=colour, fontsize=10)
        ax.set_xticks(np.arange(len(checks)) + 0.5, checks)
        ax.set_yticks(np.arange(len(faults)) + 0.5, faults)
        ax.xaxis.tick_top()
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set(xlim=(0, len(checks)), ylim=(len(faults), 0))
        planted = [line for fault, line in seen.items() if fault != healthy]
        counts = ", ".join(f"{check} {sum(line[check] for line in planted)}" for check in checks)
        alarms = sum(seen[healthy].values()) if healthy in seen else 0
        figures.show(
            fig,
            f"A table of {len(planted)} planted faults by {len(checks)} checks. Faults seen: {counts}. "
            f"Alarms without a fault: {alarms}.",
        )


def draw_detectable(questions: Sequence[int], drops: Sequence[float], marks: Sequence[int]) -> None:
    """Plot the smallest drop of a score that two runs can show, in points, against the number of questions."""
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 3.2))
        points = [100 * drop for drop in drops]
        ax.plot(questions, points, color=figures.colour("blue"))
        ax.fill_between(questions, points, color=figures.colour("wrong"), alpha=0.15, hatch="//")
        ax.text(questions[0] * 1.1, 0.35, "not seen", fontsize=10, bbox={"facecolor": "white", "edgecolor": "none"})
        for n in marks:
            drop = points[list(questions).index(n)]
            ax.plot(n, drop, "o", color=figures.colour("text"))
            ax.annotate(
                f"{n:,} questions: {drop:.1f} points", (n, drop), (8, 8), textcoords="offset points", fontsize=10
            )
        ax.set(xscale="log", ylim=(0, 1.15 * points[0]), xlabel="questions in each run", ylabel="points of accuracy")
        ax.set_xlim(questions[0], questions[-1])
        said = ", ".join(f"{n} questions {points[list(questions).index(n)]:.1f} points" for n in marks)
        figures.show(fig, f"A falling curve of the smallest drop in accuracy that two runs can show: {said}.")
