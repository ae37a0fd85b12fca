"""The pictures of `50__what_it_buys`. Each takes the rows of a record, and says in its alt text what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from gptoss_lab.course import figures
from gptoss_lab.course.lessons.draw_42 import place, prepare_sizes
from gptoss_lab.course.lessons.draw_48 import STYLES
from gptoss_lab.course.lessons.layer_50 import Row, all_rows, median_us, saved_share, sizes

NAMES = {"rebuild": "rebuild", "reuse": "reuse", "route": "route", "legacy": "3.5.1"}
MODES = {"graph": "CUDA graph", "eager": "eager"}


def draw_prediction(
    record: Mapping[str, Any], predicted: Mapping[str, tuple[float, float]], guess: Mapping[str, float | None]
) -> None:
    """Draw the predicted microseconds of a layer, for launches and for bytes, with the measured ones below.

    predicted: by way the microseconds for its launches and for its bytes. guess: the reader's, None for no guess.
    """
    rows = all_rows(record)
    layers = sizes(rows)[1]
    words = []
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 3.4))
        for at, (way, (launch_us, bytes_us)) in enumerate(predicted.items()):
            measured = median_us(rows, layers, 1, way, "graph") / layers
            ax.barh(at - 0.2, bytes_us, height=0.36, color=figures.colour("buffer"), label="bytes" if not at else None)
            ax.barh(
                at - 0.2,
                launch_us,
                left=bytes_us,
                height=0.36,
                color=figures.colour("view"),
                hatch="////",
                edgecolor="white",
                label="launches" if not at else None,
            )
            ax.barh(at + 0.2, measured, height=0.36, color=figures.colour("copy"), label="measured" if not at else None)
            for y, us in ((at - 0.2, launch_us + bytes_us), (at + 0.2, measured)):
                ax.text(us + 0.8, y, f"{us:.0f}", va="center", fontsize=10)
            if guess.get(way) is not None:
                ax.plot(guess[way], at, "D", color=figures.colour("wrong"), markersize=8)
            words.append(f"{way} {launch_us + bytes_us:.0f} predicted, {measured:.0f} measured")
        ax.set_yticks(range(len(predicted)), list(predicted))
        ax.tick_params(axis="y", length=0)
        ax.invert_yaxis()
        ax.set_xlabel(f"microseconds for one layer of {layers}, one token, CUDA graph")
        fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        figures.show(
            fig,
            f"Microseconds of one layer of {layers} at one token in a CUDA graph, predicted from bytes and launches "
            f"and measured: {'; '.join(words)}.",
            caption=f"Measured: recorded on {place(record['provenance'])}. A red diamond is your guess.",
        )


def draw_modes(record: Mapping[str, Any]) -> None:
    """Draw the time of a layer by way and mode on one scale, with what each saves against `rebuild`."""
    rows = all_rows(record)
    layers = sizes(rows)[1]
    ways, words = ("rebuild", "reuse", "route"), []
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 3.6))
        for block, (mode, title) in enumerate(MODES.items()):
            first = median_us(rows, layers, 1, "rebuild", mode) / layers
            said = []
            for at, way in enumerate(ways):
                us, y = median_us(rows, layers, 1, way, mode) / layers, 4.3 * block + at
                shade = figures.colour(STYLES[way][0])
                ax.barh(y, us, height=0.8, color=shade, hatch=("////", "", "...")[at], edgecolor="white")
                change = "" if way == "rebuild" else f", {us / first - 1:+.0%}"
                ax.text(us + 8, y, f"{way} {us:.0f}{change}", va="center", fontsize=10)
                said.append(f"{way} {us:.0f}{change}")
            ax.text(0, 4.3 * block - 0.7, title, fontsize=11, weight="bold")
            words.append(f"{title}: {', '.join(said)}")
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.invert_yaxis()
        ax.margins(x=0.22)
        ax.set_xlim(left=0)
        ax.set_xlabel("microseconds for one layer, one token")
        figures.show(
            fig,
            f"Microseconds of one layer of {layers} at one token, by mode and way, on one scale. {'. '.join(words)}.",
            caption=f"Recorded on {place(record['provenance'])}. Medians; changes are against rebuild.",
        )


def draw_shares(record: Mapping[str, Any], floor_us: float) -> None:
    """Plot what share of a step each change saves against the time of all else in the step, and that time's floor."""
    rows, words = all_rows(record), []
    rest = np.geomspace(100, 100_000, 200)
    lines = [("graph", "route", "D-"), ("graph", "reuse", "s-"), ("eager", "route", "D--"), ("eager", "reuse", "s--")]
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 3.8), layout="constrained")
        ax.axhspan(10, 12, color=figures.colour("mark"), alpha=0.6, label="the report, 10 to 12 %")
        ax.axvline(floor_us, color=figures.colour("text"), linestyle=":", label="floor of the rest")
        for mode, way, style in lines:
            share = [100 * saved_share(rows, "rebuild", way, 1, mode, us) for us in rest]
            ax.plot(rest, share, style, color=figures.colour(STYLES[way][0]), label=f"{way}, {mode}", markevery=40)
            at_floor = saved_share(rows, "rebuild", way, 1, mode, floor_us)
            words.append(f"{way} in {MODES[mode]} saves {at_floor:.0%} at the floor")
        ax.set(xscale="log", xlabel="everything else in the step, microseconds", ylabel="saved, % of the step")
        ticks = (100, 1000, 10_000, 100_000)
        ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.set_ylim(bottom=0)
        ax.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=3.5)
        figures.show(
            fig,
            "Share of a step that is saved, against the time of everything else in it. All lines fall as that time "
            f"grows, those of CUDA graphs first: {'; '.join(words)}. A band marks the reported 10 to 12 %, and both "
            "lines of reuse cross it. A dotted line marks the floor of everything else.",
            caption=f"Computed from the record of {place(record['provenance'])}; one token, against rebuild.",
        )


def draw_floor(record: Mapping[str, Any], floors: Mapping[int, float]) -> None:
    """Plot a single layer's time by tokens with the floor below it, and beside it what the two changes save.

    floors: by tokens the microseconds that the bytes of that layer take.
    """
    rows = all_rows(record)
    tokens, layers = sizes(rows)
    ways = [way for way in STYLES if any(row["way"] == way for row in rows)]
    with figures.style():
        fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
        for way in ways:
            shade, style = STYLES[way]
            times = [median_us(rows, 1, n, way, "graph") for n in tokens]
            left.plot(tokens, times, style, color=figures.colour(shade), label=NAMES[way])
        left.plot(tokens, [floors[n] for n in tokens], "x:", color=figures.colour("text"), label="floor")
        prepare_sizes(left, tokens, "a layer alone")
        left.set_ylabel("microseconds")
        words = _plot_saved(right, rows, tokens, layers)
        fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5)
        fastest = [f"{median_us(rows, 1, n, 'route', 'graph') / floors[n]:.1f}" for n in tokens]
        figures.show(
            fig,
            f"Left: microseconds of a layer alone in a CUDA graph for {_listed(tokens)} tokens, both axes logarithmic. "
            f"With route it takes {_listed(fastest)} times its floor. Right: the share of {layers} layers' time that "
            f"is saved against rebuild: {words}.",
            caption=f"Recorded on {place(record['provenance'])}. Medians. Floor: bytes over 4.8 TB/s.",
        )


def _plot_saved(ax: Any, rows: Sequence[Row], tokens: Sequence[int], layers: int) -> str:
    """Plot the saved share of the layers' time by tokens, and return it in words."""
    words = []
    for way in ("reuse", "route"):
        shade, style = STYLES[way]
        shares = [100 * saved_share(rows, "rebuild", way, n, "graph", 0.0) for n in tokens]
        ax.plot(tokens, shares, style, color=figures.colour(shade))
        words.append(f"{way} {_listed([f'{share:.0f} %' for share in shares])}")
    ax.set(xscale="log", xlabel="tokens", ylabel="saved, % of the layers", title=f"{layers} layers, against rebuild")
    ax.set_xticks(tokens, [str(n) for n in tokens], fontsize=8, rotation=45)
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    return "; ".join(words)


def _listed(values: Sequence[Any]) -> str:
    *rest, last = [str(value) for value in values]
    return f"{', '.join(rest)} and {last}" if rest else last
