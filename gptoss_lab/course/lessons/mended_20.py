"""Mends of the loaders in `loaders_20`: the cheap ones, the blunt one, and one that fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import torch

from gptoss_lab.course.lessons.loaders_20 import PAIR, QUARK_EXPERT, copy_all, parts
from gptoss_lab.mxfp4 import dequantise
from gptoss_lab.weights.borrow import lend, own
from gptoss_lab.weights.cases import split_name
from gptoss_lab.weights.report import Target

Item = tuple[str, torch.Tensor]
Weights = Iterable[Item]
Half = Callable[[Weights], None]


def load_quark(weights: Weights, load_experts: Half, load_normal: Half) -> int:
    """The Quark path mended: experts as they arrive, the rest owned. Returns the bytes that were copied for that.

    What the expert half leaves in the stream is taken all the same: other tensors may stand behind it.
    """
    normal, copied = [], 0

    def experts() -> Iterator[Item]:
        nonlocal copied
        for name, tensor in lend(weights):
            if QUARK_EXPERT.search(name):
                yield name, tensor
            else:
                normal.append((name, own(tensor)))
                copied += tensor.nbytes

    stream = experts()
    load_experts(stream)
    deque(stream, maxlen=0)
    load_normal(normal)
    return copied


def quark_into(model: Target, weights: Weights) -> int:
    """`load_quark` with the halves of the original."""
    return load_quark(weights, lambda experts: copy_all(model, experts), lambda rest: copy_all(model, sorted(rest)))


def load_bf16(model: Target, weights: Weights) -> None:
    """Each name is put right by itself, and of a pair only the half that waits is owned.

    Raises ValueError for a half whose other half never came.
    """
    waiting: dict[str, tuple[str, torch.Tensor]] = {}
    for name, tensor in lend(weights):
        key, half = split_name(name, PAIR)
        if half is None:
            copy_all(model, parts(name, tensor))
        elif key not in waiting:
            waiting[key] = half, own(tensor)
        else:
            _, first = waiting.pop(key)
            pair = dequantise(first, tensor) if half == ".scales" else dequantise(tensor, first)
            copy_all(model, parts(key, pair))
    if waiting:
        raise ValueError(f"one half alone: {', '.join(sorted(key + half for key, (half, _) in waiting.items()))}")


def owning_everything(load: Callable) -> Callable:
    """The blunt mend of any loader: own the whole stream on its way in."""
    return lambda model, weights: load(model, ((name, own(tensor)) for name, tensor in lend(weights)))


def sorting_late(owner: Callable[[torch.Tensor], torch.Tensor]) -> Callable:
    """A mend of the BF16 path that keeps its sorting: a tensor is cut and named on its way in, each part then owned."""

    def load(model: Target, weights: Weights) -> None:
        stored, pairs = {}, {}
        for name, tensor in weights:
            key, half = split_name(name, PAIR)
            if half is None:
                stored |= {part: owner(piece) for part, piece in parts(name, tensor)}
            else:
                pairs.setdefault(key, {})[half] = owner(tensor)
        for key, both in pairs.items():
            stored |= dict(parts(key, dequantise(both[".blocks"], both[".scales"])))
        copy_all(model, sorted(stored.items()))

    return load
