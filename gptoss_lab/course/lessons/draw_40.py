"""The pictures of `40__routing_by_hand`."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from gptoss_lab.course import figures
from gptoss_lab.moe.by_hand import count_rows, schedule_blocks, sort_slots

COLOURS = ("blue", "vermillion", "green", "purple", "orange", "sky", "black")


def draw_permutation(ids: np.ndarray, n_experts: int, words: Sequence[str]) -> None:
    """Draw slots on the left, rows on the right, and a line from each slot to its row."""
    tokens, k = ids.shape
    _, row_sorted = sort_slots(ids)
    sizes = count_rows(ids, n_experts)
    slots = tokens * k
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 0.17 * slots + 0.8))
        for slot, row in enumerate(row_sorted):
            colour = figures.colour(COLOURS[slot // k % len(COLOURS)])
            ax.plot([0, 1], [slot, row], color=colour, linewidth=1.2, alpha=0.8)
        for token, word in enumerate(words):
            ax.text(-0.03, token * k + (k - 1) / 2, repr(word), ha="right", va="center", fontsize=10)
            ax.plot([-0.015, -0.015], [token * k, token * k + k - 1], color=figures.colour("muted"), linewidth=2)
        first = np.cumsum([0, *sizes])
        for expert in np.flatnonzero(sizes):
            middle = (first[expert] + first[expert + 1] - 1) / 2
            ax.text(1.03, middle, f"{expert}", va="center", fontsize=8)
            ax.plot([1.015, 1.015], [first[expert] - 0.3, first[expert + 1] - 0.7], color="black", linewidth=2)
        ax.set(xlim=(-0.25, 1.12), ylim=(slots, -1.5))
        ax.text(0, -1.2, "slots, by token", ha="center")
        ax.text(1, -1.2, "rows, by expert", ha="center")
        ax.axis("off")
        figures.show(
            fig,
            f"{slots} slots on the left, {k} for each of {tokens} tokens, joined by lines to {slots} rows on the "
            f"right, which are grouped by {int((sizes > 0).sum())} experts. The lines cross: no "
            "token's slots stay together.",
        )


def block_frames(sizes: np.ndarray, block_size: int) -> tuple[list[figures.Picture], list[str]]:
    """Draw the rows of all experts cut into blocks, one more entry of the schedule filled in each frame."""
    blocks = int(sum(-(-int(size) // block_size) for size in sizes))
    schedule = schedule_blocks(sizes, block_size, blocks + 2)
    frames = [_draw_blocks(sizes, block_size, schedule, filled) for filled in range(blocks + 1)]
    captions = ["The rows of each expert, nothing scheduled yet"]
    for entry in schedule[:blocks]:
        expert, block = int(entry) & 0xFFFF, int(entry) >> 16
        rows = min(block_size, int(sizes[expert]) - block * block_size)
        captions.append(f"Block {block} of expert {expert}: {rows} rows, entry {int(entry)} = {block} << 16 | {expert}")
    return frames, captions


def _draw_blocks(sizes: np.ndarray, block_size: int, schedule: np.ndarray, filled: int) -> figures.Picture:
    taken = {(int(entry) & 0xFFFF, int(entry) >> 16) for entry in schedule[:filled]}
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 2.6))
        for expert, size in enumerate(sizes):
            ax.text(expert + 0.4, 3.6, f"expert {expert}", ha="center", fontsize=9)
            for row in range(int(size)):
                block = row // block_size
                done = (expert, block) in taken
                shade = "buffer" if done else "muted"
                place = (expert + 0.2 * (row % block_size), 3.1 - 0.55 * block)
                box = plt.Rectangle(place, 0.17, 0.4, facecolor=figures.colour(shade) if done else "white")
                box.set_edgecolor(figures.colour(shade))
                ax.add_patch(box)
        for place, entry in enumerate(schedule):
            x = place * 8 / len(schedule)
            known = place < filled
            text = f"{int(entry) >> 16}, {int(entry) & 0xFFFF}" if known else ("-1" if entry < 0 else "")
            width = 7.6 / len(schedule)
            box = plt.Rectangle((x, 0.2), width, 0.7, facecolor="white", edgecolor=figures.colour("text"))
            ax.add_patch(box)
            ax.text(x + width / 2, 0.55, text, ha="center", va="center", fontsize=9)
        ax.text(0, 1.1, "schedule (block, expert)", fontsize=9)
        ax.set(xlim=(-0.1, 8.1), ylim=(0, 4))
        ax.axis("off")
        return figures.picture(
            fig,
            f"Rows of {len(sizes)} experts as boxes, in blocks of {block_size}. {filled} blocks are coloured and "
            f"stand in the schedule below, which has {len(schedule)} places.",
        )


def draw_bitmatrix(words: np.ndarray, n_experts: int, labels: Sequence[str]) -> None:
    """Draw the bits of a bitmatrix: a line a token, a column an expert."""
    experts = np.arange(n_experts)
    bits = words[:, experts // 32] >> (experts % 32).astype(np.uint32) & 1  # [tokens, experts]
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 0.32 * len(words) + 1.1))
        for token, row in enumerate(bits):
            for expert, bit in enumerate(row):
                face = figures.colour("copy") if bit else "white"
                box = plt.Rectangle((expert + 0.08, token + 0.08), 0.84, 0.84, facecolor=face, edgecolor="#BBBBBB")
                ax.add_patch(box)
        for expert, count in enumerate(bits.sum(0)):
            if count:
                ax.text(expert + 0.5, len(words) + 0.55, f"{count}", ha="center", va="center", fontsize=9)
        ax.set_yticks(np.arange(len(words)) + 0.5, [repr(label) for label in labels])
        ax.set_xticks(np.arange(0, n_experts, 4) + 0.5, range(0, n_experts, 4))
        ax.set(
            xlim=(0, n_experts), ylim=(len(words) + 1, 0), xlabel="expert; below each column, how many tokens picked it"
        )
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        figures.show(
            fig,
            f"A grid of {len(words)} tokens by {n_experts} experts with {int(bits.sum())} filled cells, "
            f"{int(bits[0].sum())} in each line. Numbers below the columns count the filled cells.",
        )
