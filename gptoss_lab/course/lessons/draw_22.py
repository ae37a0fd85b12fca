"""The pictures of `22__when_bytes_change`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt

from gptoss_lab.course import figures

MARKERS = "os^Dv<>P"


def draw_torn(samples: Sequence[tuple[float, list[float]]]) -> None:
    """Plot the share of each old view that has been overwritten, over milliseconds.

    `samples` are (seconds since the next request's first tensor came, share of each view).
    """
    moments = [1000 * second for second, _ in samples]
    colours = ("blue", "vermillion", "green", "purple", "orange", "sky", "black", "muted")
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 3.6))
        for view, shares in enumerate(zip(*(shares for _, shares in samples), strict=True)):
            ax.plot(
                moments,
                [100 * share for share in shares],
                marker=MARKERS[view % len(MARKERS)],
                markevery=max(1, len(moments) // 12),
                markersize=5,
                color=figures.colour(colours[view % len(colours)]),
                label=f"view {view}",
            )
        ax.set(xlabel="ms after the first tensor of the next request came", ylabel="overwritten, %", ylim=(-4, 104))
        ax.set_title("What the views of the last request hold while the next one is written")
        ax.legend(ncols=2, fontsize=9, loc="center left", bbox_to_anchor=(1.01, 0.5))
        figures.show(
            fig,
            f"One rising line for each of {len(samples[0][1])} old views: the share of its bytes that the next request "
            "has overwritten, against milliseconds. The first view is overwritten when the stream comes back, the "
            "later ones one after another; on its way up a line passes through shares between 0 and 100 %.",
            caption="Measured on this machine when this cell ran.",
        )


def draw_passes(passed: Mapping[float, Sequence[float]], runs: int) -> None:
    """Plot how often a faulty loader passed its test, against how late it reads. `passed`: delay in ms -> by view."""
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 3.2))
        delays = [str(delay) for delay in passed]
        for view, (role, marker) in enumerate(zip(("wrong", "copy", "ok"), "os^", strict=True)):
            counts = [100 * shares[view] for shares in passed.values()]
            ax.plot(delays, counts, marker=marker, color=figures.colour(role), label=("first", "middle", "last")[view])
        ax.set(xlabel="the read comes so many ms late", ylabel="test passes, %", ylim=(-4, 104))
        ax.set_title(f"The same faulty loader, {runs} runs for each point")
        ax.legend(title="the view that the test looks at")
        figures.show(
            fig,
            f"How often a test of a loader that reads late passes, against how late it reads, {runs} runs a point, one "
            "line for a test that looks at the first, the middle and the last view. A test of the first view never "
            "passes. A test of a later view passes often if the read comes at once, and hardly ever if much later.",
            caption="Measured on this machine when this cell ran.",
        )


def draw_mappings(requests: int) -> None:
    """Draw for each request which mappings may be read, under `prove`."""
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 0.5 * requests + 1.2))
        for row in range(requests):
            ax.barh(row, 1, left=row, height=0.7, color=figures.colour("ok"))
            ax.text(row + 0.5, row, "readable", ha="center", va="center", color="white")
            for later in range(row + 1, requests):
                refused = figures.colour("wrong")
                ax.barh(row, 1, left=later, height=0.7, color="white", edgecolor=refused, hatch="////")
        ax.set_yticks(range(requests), [f"memory {row + 1}" for row in range(requests)])
        ax.set_xticks([row + 0.5 for row in range(requests)], [f"request {row + 1}" for row in range(requests)])
        ax.set_xlim(0, requests)
        ax.invert_yaxis()
        ax.set_title("Each request gets memory of its own; hatched: every access is refused")
        figures.show(
            fig,
            f"A staircase of {requests} stretches of memory against {requests} requests. Each stretch is readable "
            "while its own request runs, and hatched, which means that every access is refused, during all later ones.",
        )
