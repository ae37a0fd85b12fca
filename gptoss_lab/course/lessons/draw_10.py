"""The pictures of `10__every_answer_is_bang`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import matplotlib.pyplot as plt

from gptoss_lab.course import figures


def draw_sources(position: Mapping[str, int], found: Mapping[str, str]) -> None:
    """Plot each wrong tensor's place in the stream against the place of the tensor whose bytes it now holds."""
    own = [position[name] for name in found]
    source = [position[name] for name in found.values()]
    above = sum(s > o for o, s in zip(own, source, strict=True))
    with figures.style():
        fig, ax = plt.subplots(figsize=(7, 4.6))
        last = len(position) - 1
        ax.plot([0, last], [0, last], color=figures.colour("muted"), linestyle="--", linewidth=1)
        ax.text(last * 0.72, last * 0.66, "its own bytes", color=figures.colour("muted"), rotation=33, va="top")
        ax.scatter(own, source, s=22, color=figures.colour("wrong"))
        ax.set(xlabel="place of the wrong tensor in the stream", ylabel="place of the bytes it holds")
        ax.set_title("Wrong tensors hold bytes of tensors that came later")
        figures.show(
            fig,
            f"Scatter plot of {len(own)} wrong tensors. Across: the tensor's place in the stream. Up: the place of the "
            f"tensor whose bytes it holds. {above} dots lie above the diagonal, {len(own) - above} on or below it.",
        )


def draw_strip(position: Mapping[str, int], lost: Collection[str], text: str, limit: int) -> figures.Picture:
    """Draw all tensors in the order of arrival, the lost ones marked, with the answer that the model gives."""
    columns = 31
    with figures.style():
        fig, ax = plt.subplots(figsize=(7.5, 2.2))
        for name, place in position.items():
            row, column = divmod(place, columns)
            wrong = name in lost
            ax.add_patch(
                plt.Rectangle(
                    (column, -row),
                    0.86,
                    0.82,
                    facecolor=figures.colour("wrong" if wrong else "ok"),
                    edgecolor="white",
                    hatch="////" if wrong else None,
                )
            )
        rows = -(-len(position) // columns)
        ax.set(xlim=(-0.3, columns), ylim=(-rows + 0.8, 1.2))
        ax.axis("off")
        ax.set_title(f"limit {limit:,} bytes: {len(lost)} of {len(position)} tensors wrong (hatched), answer {text!r}")
        return figures.picture(
            fig,
            f"Strip of {len(position)} cells, one a tensor in the order of arrival. At a limit of {limit:,} bytes "
            f"{len(lost)} are wrong, and the model answers {text!r}.",
        )
