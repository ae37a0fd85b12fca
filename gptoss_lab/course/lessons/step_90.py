"""One decoding step of a made-up model with 8-bit activations, and a recorder of what its calls compute."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gptoss_lab.moe.launches import NO_LAUNCH

WIDTH = 16


@dataclass
class Layer:
    """Weights [WIDTH, WIDTH] of one layer, the keys and values of earlier tokens [past, WIDTH], a rotary base."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    keys: Tensor
    values: Tensor
    base: float


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round x [width] to whole steps between -127 and 127; return them and the size of a step."""
    step = x.abs().amax() / 127
    return (x / step).round(), step


def multiply(weight: Tensor, steps: Tensor, step: Tensor) -> Tensor:
    """weight [rows, width] times a quantised x [width] -> [rows]."""
    return (weight * steps).sum(-1) * step


def rotary_table(position: Tensor, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin [width / 2] of the angles at a position, an int64 tensor [1]."""
    half = WIDTH // 2
    frequencies = (torch.arange(half, device=position.device) * (-math.log(base) / half)).exp()
    angles = position * frequencies
    return angles.cos(), angles.sin()


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of x [width] by its angle."""
    a, b = x[: WIDTH // 2], x[WIDTH // 2 :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos])


def project(x: Tensor, weight: Tensor) -> Tensor:
    return multiply(weight, *quantise(x))


def rotate(x: Tensor, position: Tensor, base: float) -> Tensor:
    return turn(x, *rotary_table(position, base))


def attend(q: Tensor, k: Tensor, v: Tensor, layer: Layer) -> Tensor:
    """One head over the earlier tokens and this one."""
    keys = torch.cat([layer.keys, k[None]])  # [past + 1, width]
    values = torch.cat([layer.values, v[None]])
    shares = (keys * q).sum(-1).softmax(-1)  # [past + 1]
    return (values * shares[:, None]).sum(0)


def decode_step(x: Tensor, position: Tensor, layers: list[Layer]) -> Tensor:
    """The hidden state x [width] of a token at a position [1], through all layers."""
    for layer in layers:
        q = rotate(project(x, layer.q), position, layer.base)
        k = rotate(project(x, layer.k), position, layer.base)
        v = project(x, layer.v)
        x = x + project(attend(q, k, v, layer), layer.o)
        gate, up = project(x, layer.gate), project(x, layer.up)
        x = x + project(gate * gate.sigmoid() * up, layer.down)
    return x


def make_step(bases: tuple[float, ...], seed: int = 0, at: int = 5, device: str = "cpu") -> tuple:
    """Arguments of a step: x, its position and a layer for each of `bases`. Made on the CPU, so equal everywhere."""
    random = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device)

    def layer(base: float) -> Layer:
        weights = (numbers(WIDTH, WIDTH) / 8 for _ in range(7))  # small, so that no layer's output explodes
        return Layer(*weights, numbers(at, WIDTH), numbers(at, WIDTH), base)

    layers = [layer(base) for base in bases]
    return numbers(WIDTH), torch.tensor([at], device=device), layers


@dataclass(frozen=True)
class Call:
    """One call that launches: the operation, what went in, and what came out. A tensor stands as a text that is
    the same for the same dtype, shape and bytes, and for no others.
    """

    op: str
    inputs: tuple[str, ...]
    result: str


def record(fn: Callable[[], Any]) -> list[Call]:
    """Run `fn()` and list its calls that launch, in order: those that neither return a view nor only allocate."""
    recorder = Recorder()
    with recorder:
        fn()
    return recorder.calls


class Recorder(TorchDispatchMode):
    """Sees every aten call by dispatch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operation imports the compiler, for seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = as_texts((*args, *sorted(kwargs.items())))
        result = func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not views and name not in NO_LAUNCH and not (torch.is_tensor(result) and result.numel() == 0):
            self.calls.append(Call(f"aten.{name}", inputs, "; ".join(as_texts((result,)))))
        return result


def as_texts(values: tuple) -> tuple[str, ...]:
    """Each value as a text; tensors by dtype, shape and a digest of their bytes."""
    texts = []
    for value in values:
        if torch.is_tensor(value):
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            digest = hashlib.sha256(raw).hexdigest()[:12]
            texts.append(f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} {digest}")
        elif isinstance(value, (list, tuple)):
            texts += as_texts(tuple(value))
        else:
            texts.append(str(value))
    return tuple(texts)
