"""The pictures of `12__borrowed_views`."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt

from gptoss_lab.course import figures
from gptoss_lab.weights.plan import Plan, Slot, Source, plan


def request_frames(source: Source, memory_limit: int) -> tuple[list[figures.Picture], list[str]]:
    """Draw the buffer after each request: what the request wrote, and what earlier ones left behind it."""
    whole = plan(source, memory_limit)
    frames, captions, remains = [], [], []
    for number, request in enumerate(whole.requests):
        reach = request[-1].stop
        remains = [(max(start, reach), stop) for start, stop in remains if stop > reach]
        frames.append(_draw_buffer(whole, number, request, remains))
        captions.append(
            f"Request {number + 1} of {len(whole.requests)}: {len(request)} tensors fill {reach:,} of "
            f"{whole.buffer_bytes:,} bytes"
        )
        remains = [(slot.start, slot.stop) for slot in request] + remains
    return frames, captions


def _draw_buffer(whole: Plan, number: int, request: list[Slot], remains: list[tuple[int, int]]) -> figures.Picture:
    kib = 1024
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 1.7))
        for slot in request:
            expert = ".experts." in slot.name
            ax.barh(
                0,
                slot.nbytes / kib,
                left=slot.start / kib,
                color=figures.colour("buffer" if expert else "view"),
                edgecolor="white",
                hatch=None if expert else "..",
            )
        for start, stop in remains:
            ax.barh(0, (stop - start) / kib, left=start / kib, color="#C8C8C8", edgecolor="white")
        largest = max(request, key=lambda slot: slot.nbytes)
        ax.set(xlim=(0, whole.buffer_bytes / kib), yticks=[], xlabel="place in the buffer, KiB")
        ax.spines["left"].set_visible(False)
        ax.set_title(f"request {number + 1}: blue is an expert tensor, dotted is not, grey is left from before")
        return figures.picture(
            fig,
            f"The staging buffer after request {number + 1}: {len(request)} tensors from byte 0 to "
            f"{request[-1].stop:,}, the largest {largest.name}; "
            f"{sum(stop - start for start, stop in remains):,} bytes behind them are left from earlier requests.",
        )


def sweep(source: Source, points: int) -> list[tuple[float, float]]:
    """Plan the stream at `points` limits from the smallest to just above the total.

    Returns pairs: the limit as a share of the checkpoint, and the share of its tensors that is lost.
    """
    smallest = max(slot.nbytes for slot in plan(source, -1).slots)
    total = plan(source, -1).total_bytes
    limits = [smallest + round((1.05 * total - smallest) * i / (points - 1)) for i in range(points)]
    plans = [plan(source, limit) for limit in sorted({*limits, total - 1, total})]
    return [(each.memory_limit / total, len(each.overwritten) / len(each.slots)) for each in plans]


def draw_phases(
    models: Mapping[str, Source],
    answers: Mapping[int, str],
    marks: Mapping[str, tuple[str, int]],
    points: int = 120,
) -> None:
    """Plot the share of lost tensors against the limit as a share of the checkpoint, one line a model.

    `answers` are texts that the first model gave, by limit in bytes; `marks` are limits to point at: a label, with
    the model and the limit in bytes.
    """
    curves = {name: sweep(source, points) for name, source in models.items()}
    with figures.style():
        fig, ax = plt.subplots(figsize=(8, 4))
        for (name, curve), dashes in zip(curves.items(), ("-", "--", ":"), strict=False):
            ax.plot(*zip(*curve, strict=True), dashes, label=name, drawstyle="steps-post")
        first = next(iter(models.values()))
        for text, marker, role in zip(dict.fromkeys(answers.values()), "xo", ("wrong", "ok"), strict=False):
            plans = [plan(first, limit) for limit, answer in answers.items() if answer == text]
            places = [(each.memory_limit / each.total_bytes, len(each.overwritten) / len(each.slots)) for each in plans]
            label = f"{next(iter(models))} answers {text!r}"
            ax.plot(*zip(*places, strict=True), marker, color=figures.colour(role), label=label, zorder=3)
        for label, (name, limit) in marks.items():
            at = plan(models[name], limit)
            x, y = limit / at.total_bytes, len(at.overwritten) / len(at.slots)
            ax.plot(x, y, "o", color=figures.colour("limit"), markersize=9, zorder=3)
            ax.annotate(label, (x, y), (x + 0.03, y + 0.06), color=figures.colour("limit"))
        ax.axvline(1, color=figures.colour("muted"), linewidth=1)
        ax.text(1.005, 0.5, "holds everything", rotation=90, va="center", color=figures.colour("muted"))
        ax.set(
            xlabel="limit / bytes of the checkpoint",
            ylabel="tensors lost, share",
            ylim=(0, 1.2),
            xlim=(0, 1.06),
        )
        ax.set_title("What is lost if every view is kept to the end")
        ax.legend(loc="lower left")
        names = ", ".join(curves)
        figures.show(
            fig,
            f"Three step curves ({names}): the share of tensors lost against the limit divided by the size of the "
            "checkpoint. All start above 0.9 at the left, wander down, and drop to 0 at 1. "
            f"Marked: {', '.join(marks)}, and {len(answers)} answers of the first model: "
            f"{', '.join(sorted(set(map(repr, answers.values()))))}.",
        )
