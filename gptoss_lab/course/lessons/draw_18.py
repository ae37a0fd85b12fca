"""The pictures of `18__same_fault_elsewhere`."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt

from gptoss_lab.course import figures
from gptoss_lab.weights.plan import Plan

LOOP_VARIABLE = 2  # steps that even a loader that keeps nothing holds a tensor


def draw_waits(loads: Mapping[str, Mapping[str, tuple[int, int]]], layout: Plan) -> None:
    """Plot for each load, by title, which tensors were held from which step to which; those held too long apart.

    `loads` are titles with what `case_files_18.waits` returned. `layout` is the plan of their stream.
    """
    order = {slot.name: place for place, slot in enumerate(layout.slots)}
    begins = [order[request[0].name] for request in layout.requests]
    said = []
    with figures.style():
        fig, axes = plt.subplots(len(loads), 1, figsize=(8, 2.6 * len(loads)), sharex=True, layout="constrained")
        for ax, (title, waits) in zip(axes, loads.items(), strict=True):
            waiting = {name: span for name, span in waits.items() if span[1] - span[0] > LOOP_VARIABLE}
            stale = {name for name, (_, stop) in waiting.items() if is_stale(name, stop, layout, begins)}
            for row, (name, (start, stop)) in enumerate(sorted(waiting.items(), key=lambda item: item[1])):
                late = name in stale
                colour = figures.colour("wrong" if late else "ok")
                ax.barh(row, stop - start, left=start, height=0.8, color=colour, hatch="////" if late else None)
            for begin in begins[1:]:
                ax.axvline(begin, color=figures.colour("text"), linewidth=1, linestyle="--")
            ax.set(yticks=[], ylabel="tensors held")
            ax.invert_yaxis()
            words = f"{title}: {len(waiting)} tensors held on to, {len(stale)} of them too long (hatched)"
            ax.set_title(words, fontsize=11)
            said.append(words)
        axes[-1].set_xlabel("tensors that the stream has produced; dashed: a new request begins")
        figures.show(
            fig,
            "One bar for each tensor that is held on to, from its arrival to the moment when it is let go. "
            f"{'. '.join(said)}. Dashed lines mark the {len(begins) - 1} places where a new request begins; a bar that "
            "crosses one and lies in its way is hatched.",
        )


def is_stale(name: str, stop: int, layout: Plan, begins: list[int]) -> bool:
    """Tell whether a tensor that was held until a step had been covered by then."""
    return any(begins[slot.request] < stop for slot in layout.overwriters(name))
