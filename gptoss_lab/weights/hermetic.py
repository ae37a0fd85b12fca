"""The loader in its barest form, before and after the fix, and the test that needs no model (SGLang PR 38908).

`loading` holds the strategies that load a real model, with names checked and costs counted. Here are the few lines
that the pull request changed, so that a test can hold them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

Weights = Iterable[tuple[str, torch.Tensor]]
Half = Callable[[Weights], object]


def drain(weights: Weights, load_experts: Half, load_normal: Half) -> None:
    """Sort the whole stream into two lists, then load both: the defect."""
    experts, normal = [], []
    for name, tensor in weights:
        (experts if ".experts." in name else normal).append((name, tensor))
    load_experts(experts)
    load_normal(normal)


def load_lazily(
    weights: Weights, load_experts: Half, load_normal: Half, own: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Hand each expert over as it arrives and keep `own(tensor)` of every other: the fix.

    What comes after the last expert that `load_experts` asks for never reaches `load_normal`.
    """
    normal: list[tuple[str, torch.Tensor]] = []

    def experts() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            if ".experts." in name:
                yield name, tensor
            else:
                normal.append((name, own(tensor)))

    load_experts(experts())
    load_normal(normal)


def produced_when_seen(model_class: type) -> list[int]:
    """How many of three expert tensors the stream had produced when the expert half saw each.

    Makes an instance of `model_class` without `__init__`, replaces its `_load_mxfp4_experts_weights` and
    `_load_normal_weights`, and calls its `_load_weights_mxfp4`. A loader that drains the stream gives [3, 3, 3], one
    that reads as it arrives [1, 2, 3].
    """
    model = object.__new__(model_class)
    produced, seen = 0, []

    def three_experts() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal produced
        for layer in range(3):
            produced += 1
            yield f"model.layers.{layer}.mlp.experts.down_proj_bias", torch.full((4,), float(layer))

    model._load_mxfp4_experts_weights = lambda weights: seen.extend(produced for _ in weights)
    model._load_normal_weights = lambda weights: None
    model._load_weights_mxfp4(three_experts())
    return seen
