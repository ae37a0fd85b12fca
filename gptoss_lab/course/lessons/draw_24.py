"""The pictures of `24__object_storage`."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt

from gptoss_lab.course import figures
from gptoss_lab.weights.plan import Slot
from gptoss_lab.weights.ranks import RankResult

SENDERS = ("sky", "orange", "purple", "yellow", "blue", "green")


def draw_lost(results: Sequence[RankResult], rounds: Sequence[Sequence[Sequence[Slot]]]) -> None:
    """Draw for each rank which tensors are wrong at the end, by the rank that read them from storage.

    `rounds` tell who read what (`ranks.plan_rounds`).
    """
    ranks = len(results)
    parts = [[slot.name for row in rounds for slot in row[sender]] for sender in range(ranks)]
    said = []
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 0.6 * ranks + 1.4))
        for result in results:
            left, wrong = 0, set(result.wrong)
            for names in parts:
                late = len(wrong & set(names))
                for width, role, hatch in ((late, "wrong", "////"), (len(names) - late, "ok", None)):
                    colour = figures.colour(role)
                    ax.barh(result.rank, width, left=left, height=0.7, color=colour, hatch=hatch)
                    left += width
            counts = [f"{len(wrong & set(names))} of {len(names)}" for names in parts]
            said.append(f"On rank {result.rank} the wrong ones are " + ", ".join(counts))
        for edge in [sum(map(len, parts[:sender])) for sender in range(1, ranks)]:
            ax.axvline(edge, color=figures.colour("text"), linewidth=1.5)
        middles = [sum(map(len, parts[:sender])) + len(parts[sender]) / 2 for sender in range(ranks)]
        ax.set_xticks(middles, [f"{len(names)} read by rank {sender}" for sender, names in enumerate(parts)])
        ax.tick_params(axis="x", length=0)
        ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        ax.set_xlim(0, sum(map(len, parts)))
        ax.invert_yaxis()
        ax.set_title("Views that are wrong when the stream has ended (hatched), on each rank")
        figures.show(
            fig,
            f"One row for each of {ranks} ranks, as wide as there are tensors, in {ranks} groups by the rank that read "
            f"them. Wrong views are hatched. By group: {'. '.join(said)}.",
        )


def draw_buffers(ranks: int) -> None:
    """Draw what the two buffers of each rank hold during one round, broadcast by broadcast."""
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 0.75 * ranks + 1.3))
        ticks = []
        for rank in range(ranks):
            for lane, buffer in enumerate(("data", "received")):
                row = rank * 2.4 + lane
                ticks.append((row, f"rank {rank}, {buffer}"))
                held: list[int] = [rank] if buffer == "data" else []
                for step in range(ranks):
                    over = None
                    if buffer == "received" and step != rank:
                        over = held[-1] if held else None
                        held.append(step)
                    _draw_cell(ax, row, step, held[-1] if held else None, over)
        ax.set_yticks([row for row, _ in ticks], [label for _, label in ticks])
        ax.set_xticks([step + 0.5 for step in range(ranks)], [f"rank {step} broadcasts" for step in range(ranks)])
        ax.tick_params(length=0)
        ax.set_xlim(0, ranks)
        ax.invert_yaxis()
        for side in ax.spines.values():
            side.set_visible(False)
        ax.set_title("Whose tensors the buffers hold (hatched: just replaced)")
        figures.show(
            fig,
            f"Two rows for each of {ranks} ranks, a data and a received buffer, over {ranks} broadcasts. The "
            "data buffer holds the rank's own tensors throughout. The received buffer holds the tensors of whoever "
            "broadcast last; each broadcast after the first replaces those of the one before, which is hatched.",
        )


def _draw_cell(ax: plt.Axes, row: float, step: int, holds: int | None, over: int | None) -> None:
    colour = "white" if holds is None else figures.colour(SENDERS[holds % len(SENDERS)])
    hatch = None if over is None else "////"
    ax.barh(row, 1, left=step, height=0.85, color=colour, edgecolor=figures.colour("muted"), hatch=hatch)
    words = "empty" if holds is None else f"rank {holds}'s" + ("" if over is None else f", over rank {over}'s")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    ax.text(step + 0.5, row, words, ha="center", va="center", fontsize=9.5, bbox=box)
