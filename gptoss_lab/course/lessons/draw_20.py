"""The pictures of `20__ownership`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt

from gptoss_lab.course import figures

OWNERS = ("mark on the tensor", "mark on the storage", "memory")


def draw_owners(decisions: Mapping[str, tuple[bool, Sequence[bool]]]) -> None:
    """Draw what three ways of deciding make of each derived tensor.

    `decisions`: way of deriving -> (it lies in the stream's memory, whether each of `OWNERS` copies it).
    """
    right = [sum(copies[place] == lent for lent, copies in decisions.values()) for place in range(len(OWNERS))]
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 0.34 * len(decisions) + 0.9))
        for row, (lent, copies) in enumerate(decisions.values()):
            ax.text(0, row, "lent" if lent else "its own", ha="center", va="center", fontsize=10)
            for place, copied in enumerate(copies, 1):
                ok = copied == lent
                colour = figures.colour("ok" if ok else "wrong")
                ax.barh(row, 0.94, left=place - 0.47, height=0.86, color=colour, hatch=None if ok else "////")
                box = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}
                words = "copies" if copied else "hands on"
                ax.text(place, row, words, ha="center", va="center", color="white", fontsize=10, bbox=box)
        ax.set_yticks(range(len(decisions)), list(decisions), family="DejaVu Sans Mono", fontsize=10)
        ax.set_xticks(range(len(OWNERS) + 1), ["whose memory", *OWNERS], fontsize=10)
        ax.xaxis.tick_top()
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set(xlim=(-0.5, len(OWNERS) + 0.5))
        ax.invert_yaxis()
        counts = ", ".join(f"by {owner} {count}" for owner, count in zip(OWNERS, right, strict=True))
        missed = ", ".join(way for way, (lent, copies) in decisions.items() if lent and not copies[1])
        figures.show(
            fig,
            f"A table of {len(decisions)} ways to derive a tensor against three ways to decide whether it must be "
            f"copied. Right decisions: {counts}, of {len(decisions)}. The mark on the storage misses: {missed}. "
            "Wrong decisions are hatched.",
            caption="Hatched: the decision is wrong.",
        )


def draw_kept(answer: Mapping) -> None:
    """Plot the host memory that is still held after a load with `owned=True`, by what the loader keeps."""
    kept, size = answer["kept"], answer["checkpoint"]
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 2.4))
        for row, held in enumerate(kept.values()):
            much = held > size / 2
            colour = figures.colour("wrong" if much else "ok")
            ax.barh(row, max(held, 0), height=0.6, color=colour, hatch="////" if much else None)
            ax.text(max(held, 0) + 1.5, row, f"{abs(held):.0f} MiB", va="center", fontsize=10)
        ax.axvline(size, color=figures.colour("limit"), linestyle="--", linewidth=1.5)
        ax.text(size, -0.62, "the checkpoint", ha="center", va="bottom", fontsize=10)
        ax.set_yticks(range(len(kept)), [f"keeps {what}" for what in kept])
        ax.set(xlabel="host memory held when the load is over, MiB", xlim=(0, 1.2 * size))
        ax.invert_yaxis()
        much = " and ".join(what for what, held in kept.items() if held > size / 2)
        figures.show(
            fig,
            "Host memory that is held after a load from the newer streamer, one bar for each loader: it keeps "
            f"{', '.join(kept)}. About as much as the checkpoint is held by: {much}. The others hold little.",
            caption="Owned tensors. Measured by the streamer 0.17; the norms are a five-hundredth of the checkpoint.",
        )


def draw_ring(answer: Mapping[str, list[list[int]]], older: Sequence[int], limits: Sequence[str], total: int) -> None:
    """Plot how many tensors were wrong with `owned=False`, a dot a run, against the number of the older streamer."""
    shades = dict(zip(answer, (("copy", "o"), ("wrong", "D")), strict=True))
    with figures.style():
        fig, axes = plt.subplots(1, len(limits), figsize=(8.5, 3.2), layout="constrained")
        for place, (ax, limit) in enumerate(zip(axes, limits, strict=True)):
            ax.axhline(older[place], color=figures.colour("text"), linestyle="--", linewidth=1.5, label="0.16.1")
            for depth, (role, marker) in shades.items():
                runs = answer[depth][place]
                across = [run / (len(runs) - 1) for run in range(len(runs))]
                label = f"0.17, {depth} buffer" + ("s" if depth != "1" else "")
                ax.plot(across, runs, marker, color=figures.colour(role), label=label, markersize=8, fillstyle="none")
            shown = [older[place], *(count for depth in answer for count in answer[depth][place])]
            room = max(2, (max(shown) - min(shown)) // 5)
            ax.set_ylim(min(shown) - room if min(shown) else -1, max(shown) + room)
            ax.yaxis.get_major_locator().set_params(integer=True)
            ax.set(xticks=[], xlim=(-0.15, 1.15))
            ax.set_title(f"limit {limit}", fontsize=11)
        axes[0].set_ylabel(f"wrong of {total} tensors")
        handles, labels = axes[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=3)
        unlimited = [depth for depth in answer if any(answer[depth][limits.index("none")])]
        figures.show(
            fig,
            "How many tensors are wrong when a loader drains a borrowed stream of the newer streamer, one panel a "
            "limit, one mark a run, beside the number for the older one. A ring of one buffer gives about the same "
            "number each time. A deeper ring gives as many or more, and not the same number each time. "
            f"Without a limit some are wrong with this many buffers: {', '.join(unlimited)}.",
            caption="Each panel has its own scale.",
        )
