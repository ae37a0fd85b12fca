#!/usr/bin/env python3
"""Draw docs/borrowed.png, the README's picture, from real loads of the tiny model.

Run it with the course's environment: .venv/bin/python scripts/draw_readme.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

from gptoss_lab.course import figures, lab
from gptoss_lab.model import Config, GptOss, generate, load_model, load_tokenizer
from gptoss_lab.weights import loading
from gptoss_lab.weights.checkpoint import read_checkpoint
from gptoss_lab.weights.compare import differing
from gptoss_lab.weights.streaming import stream

PROMPT = "The capital of France is"
OUT = lab.ROOT / "docs" / "borrowed.png"
ALT = "Three loads of one checkpoint as strips of tensors, with the answer that each model gives."


def main() -> None:
    checkpoint = read_checkpoint(lab.CAPITALS)
    originals = load_model(lab.CAPITALS, dtype=torch.bfloat16).state_dict()
    order = [name for name, _ in stream(checkpoint.files)]
    smallest = max(tensor.nbytes for tensor in originals.values())
    rows = [
        ("a buffer for all of it", loading.drain, checkpoint.total_bytes),
        ("a buffer for the largest tensor", loading.drain, smallest),
        ("the same small buffer, the loader fixed", loading.host_copies, smallest),
    ]
    with figures.style():
        fig, axes = plt.subplots(len(rows), 1, figsize=(9, 2.6), layout="constrained")
        for ax, (label, strategy, limit) in zip(axes, rows, strict=True):
            model = GptOss(Config.from_file(lab.CAPITALS), dtype=torch.bfloat16)
            strategy(model, stream(checkpoint.files, memory_limit=limit))
            lost = set(differing(originals, model.state_dict()))
            text = generate(model, load_tokenizer(lab.CAPITALS), PROMPT).text
            for place, name in enumerate(order):
                wrong = name in lost
                ax.bar(
                    place,
                    1,
                    width=0.8,
                    color=figures.colour("wrong" if wrong else "ok"),
                    edgecolor="white",
                    linewidth=0,
                    hatch="////" if wrong else None,
                )
            ax.set(xlim=(-1, len(order)), ylim=(0, 1), xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            ax.set_title(
                f"{label}: {len(lost)} of {len(order)} tensors wrong.   {PROMPT} …  {text.strip()}",
                fontsize=11,
            )
        drawn = figures.picture(fig, ALT)
    part = OUT.with_suffix(".part")
    part.write_bytes(drawn.png)
    part.replace(OUT)
    print(f"{OUT.relative_to(lab.ROOT)}: {len(drawn.png)} bytes")


if __name__ == "__main__":
    main()
