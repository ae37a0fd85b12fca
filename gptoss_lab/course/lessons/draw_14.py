"""The pictures and tables of `14__from_bytes_to_bangs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
import numpy as np
import torch

from gptoss_lab.course import figures


def sort_into_parts(names: Iterable[str]) -> dict[str, list[str]]:
    """Sort a gpt-oss's tensor names into the groups that the lesson breaks one at a time."""

    def part(name: str) -> str:
        if "norm" in name:
            return "norms"
        if ".experts." in name:
            return f"expert {'biases' if name.endswith('bias') else name.rsplit('_', 1)[1]}"
        if "self_attn" in name:
            return (
                "sinks" if name.endswith("sinks") else f"attention {'biases' if name.endswith('bias') else 'weights'}"
            )
        return "router" if "router" in name else "embedding" if "embed" in name else "lm_head"

    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(part(name), []).append(name)
    return dict(sorted(groups.items()))


def draw_exponents(groups: Mapping[str, torch.Tensor]) -> None:
    """Plot, one panel a group, how often each power of ten occurs among the magnitudes of its finite values."""
    edges = np.arange(-40, 42, 2)
    with figures.style():
        fig, axes = plt.subplots(len(groups), 1, figsize=(8, 1.45 * len(groups)), sharex=True, layout="constrained")
        for ax, (name, values), role in zip(axes, groups.items(), ("ok", "copy", "wrong"), strict=False):
            magnitudes = values[values.isfinite() & (values != 0)].abs().log10().numpy()
            ax.hist(
                magnitudes,
                bins=edges,
                weights=np.full(len(magnitudes), 1 / len(values)),
                color=figures.colour(role),
            )
            ax.axvline(19.3, color=figures.colour("muted"), linestyle="--", linewidth=1)
            ax.set_ylabel("share")
            ax.set_title(f"{name}, read as BF16", fontsize=11)
        axes[0].text(19.8, axes[0].get_ylim()[1] * 0.55, "square overflows", color=figures.colour("muted"))
        axes[-1].set_xlabel("magnitude, power of ten")
        figures.show(
            fig,
            "Three histograms of magnitudes on a scale of powers of ten. Dense weights lie between 1e-4 and 10. Expert "
            "blocks read as BF16 spread from 1e-38 to 1e38. Expert scales read as BF16 all lie above 1e19, where a "
            "square overflows float32.",
        )
