"""The picture of `90__on_your_own`."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt

from gptoss_lab.course import figures


def draw_limits(wrong: Mapping[int, int], tensors: int) -> None:
    """Plot for each limit of the buffer, in bytes, how many of `tensors` parameters are wrong."""
    right = [limit for limit, count in wrong.items() if not count]
    bad = {limit: count for limit, count in wrong.items() if count}
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 3), layout="constrained")
        ax.vlines(list(bad), 0, list(bad.values()), color=figures.colour("wrong"), linewidth=1.5)
        ax.plot(list(bad), list(bad.values()), "v", color=figures.colour("wrong"), label="some are wrong")
        ax.plot(right, [0] * len(right), "o", color=figures.colour("ok"), markersize=4, label="all are right")
        ax.set(xlabel="memory limit, bytes", ylabel="parameters wrong", ylim=(-0.6, None))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        ax.yaxis.get_major_locator().set_params(integer=True)
        ax.legend()
        figures.show(
            fig,
            f"How many of {tensors} parameters are wrong after a load, against the memory limit, "
            f"at {len(wrong)} limits. At {len(right)} of them none is. The largest number is {max(wrong.values())}; "
            f"the largest limit with a fault is {max(bad):,} bytes.",
        )
