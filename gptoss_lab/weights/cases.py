"""Six loaders with the same fault, each rebuilt in small from a public pull request, with its fix beside it.

Every loader is called as `load(model, weights)`. `model` has `copy_in(name, tensor)`, as `model.GptOss` has;
`Parameters` is the smallest such model. `weights` is an iterator of `(name, tensor)`, `streaming.stream` for one.
The pairs of `pair_cache` and `pending_scale` occur in the checkpoint of `write_case_checkpoint`; the other loaders
load any checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from gptoss_lab.weights.borrow.ownership import lend, own
from gptoss_lab.weights.report import Target

Weights = Iterable[tuple[str, torch.Tensor]]

KV_A, Q_A, FUSED = "self_attn.kv_a_proj.weight", "self_attn.q_a_proj.weight", "self_attn.fused_qkv_a_proj.weight"
LAYERS = 12


# --- 1. a pair: the first half is cached until the second half comes


def pair_cache(model: Target, weights: Weights) -> None:
    """Fuse `kv_a_proj` and `q_a_proj` (SGLang pull request 37370). The half that waits is a view."""
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in weights:
        layer, half = split_name(name, (KV_A, Q_A))
        if half is None:
            model.copy_in(name, tensor)
            continue
        pair = halves.setdefault(layer, {})
        pair[half] = tensor
        if len(pair) == 2:
            model.copy_in(layer + FUSED, torch.cat([pair[Q_A], pair[KV_A]]))
            del halves[layer]


def pair_cache_fixed(model: Target, weights: Weights) -> None:
    """Each half is owned, since `pair` still holds both when the stream goes on."""
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in lend(weights):
        layer, half = split_name(name, (KV_A, Q_A))
        if half is None:
            model.copy_in(name, tensor)
            continue
        pair = halves.setdefault(layer, {})
        pair[half] = own(tensor)
        if len(pair) == 2:
            model.copy_in(layer + FUSED, torch.cat([pair[Q_A], pair[KV_A]]))
            del halves[layer]


# --- 2. a weight waits for its scale, or a scale for its weight


def pending_scale(model: Target, weights: Weights) -> None:
    """Dequantise on the way (SGLang pull request 37371). Whichever of the two comes first waits as a view."""
    pending: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in weights:
        key = name.removesuffix("_scale")
        if ".mlp." not in name:
            model.copy_in(name, tensor)
        elif key not in pending:
            pending[key] = {name: tensor}
        else:
            model.copy_in(key, dequantise(key, pending.pop(key) | {name: tensor}))


def pending_scale_fixed(model: Target, weights: Weights) -> None:
    """What waits is owned. All weights may come before all scales: then most of a shard waits in host memory."""
    pending: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in lend(weights):
        key = name.removesuffix("_scale")
        if ".mlp." not in name:
            model.copy_in(name, tensor)
        elif key not in pending:
            pending[key] = {name: own(tensor)}
        else:
            model.copy_in(key, dequantise(key, pending.pop(key) | {name: tensor}))


def dequantise(key: str, both: dict[str, torch.Tensor]) -> torch.Tensor:
    """weight [rows, columns] and scale [rows], by name -> float32 [rows, columns]."""
    return both[key].float() * both[key + "_scale"].float()[:, None]


# --- 3. a worker thread copies while the stream moves on


def worker_thread(model: Target, weights: Weights, executor: Executor | None = None) -> None:
    """Copy in another thread (SGLang pull request 32913). The copy may begin, or go on, after the next `next()`."""
    with executor or ThreadPoolExecutor(max_workers=1) as pool:
        running = [pool.submit(model.copy_in, name, tensor) for name, tensor in weights]
    for copy in running:
        copy.result()


def worker_thread_fixed(model: Target, weights: Weights, executor: Executor | None = None) -> None:
    """What the worker gets is owned before the stream moves on. The queue is a copy of what it has not done yet."""
    with executor or ThreadPoolExecutor(max_workers=1) as pool:
        running = [pool.submit(model.copy_in, name, own(tensor)) for name, tensor in lend(weights)]
    for copy in running:
        copy.result()


# --- 4. drained by `dict`, then by `sorted`


def dict_and_sorted(model: Target, weights: Weights) -> None:
    """Names first, tensors later, as in the BF16 path of SGLang's gpt-oss (still so in 0.5.23)."""
    by_name = {name.removeprefix("language_model."): tensor for name, tensor in dict(weights).items()}
    for name, tensor in sorted(by_name.items()):
        model.copy_in(name, tensor)


def dict_and_sorted_fixed(model: Target, weights: Weights) -> None:
    """A name needs no other name to be put right, and a parameter does not ask for an order."""
    for name, tensor in weights:
        model.copy_in(name.removeprefix("language_model."), tensor)


# --- 5. three lists in a model whose wrong weights only cost speed


def three_lists(model: Target, weights: Weights) -> None:
    """The loader of a draft model (SGLang pull request 33582): its proposals are checked, so no text is wrong."""
    attention, experts, rest = [], [], []
    for name, tensor in weights:
        group = attention if ".self_attn." in name else experts if ".mlp." in name else rest
        group.append((name, tensor))
    for name, tensor in [*attention, *experts, *rest]:
        model.copy_in(name, tensor)


def three_lists_fixed(model: Target, weights: Weights) -> None:
    """Each tensor goes to its place as it comes; what is done by group is done when all are there."""
    for name, tensor in weights:
        model.copy_in(name, tensor)


# --- 6. clone everything, and then run out of host memory


def clone_everything(model: Target, weights: Weights) -> None:
    """The mend that costs a whole checkpoint of host memory (vLLM 43464; in 44430 the host runs out of it)."""
    cloned = [(name, tensor.clone()) for name, tensor in weights]
    for name, tensor in cloned:
        model.copy_in(name, tensor)


def clone_everything_fixed(model: Target, weights: Weights) -> None:
    """Nothing waits, so nothing is cloned."""
    for name, tensor in weights:
        model.copy_in(name, tensor)


@dataclass(frozen=True)
class Case:
    """A loader with its fault, its fix, where it was seen, and what it is about in a few words."""

    name: str
    faulty: Callable
    fixed: Callable
    origin: str
    symptom: str


CASES = {
    faulty.__name__: Case(faulty.__name__, faulty, fixed, origin, symptom)
    for faulty, fixed, origin, symptom in (
        (pair_cache, pair_cache_fixed, "SGLang 37370, GLM5", "runs of one token"),
        (pending_scale, pending_scale_fixed, "SGLang 37371, NVFP4", "wrong experts"),
        (worker_thread, worker_thread_fixed, "SGLang 32913, DeepSeek", "a few tensors, other ones each time"),
        (dict_and_sorted, dict_and_sorted_fixed, "SGLang's gpt-oss in BF16", "nearly all tensors"),
        (three_lists, three_lists_fixed, "SGLang 33582, a draft model", "right text, slow"),
        (clone_everything, clone_everything_fixed, "vLLM 43464 and 44430", "right text, host memory is used up"),
    )
}


# --- a model and a checkpoint for them


class Parameters:
    """A model that is nothing but its parameters, made empty. `tensors` may be looked at when it is loaded."""

    def __init__(self, like: dict[str, torch.Tensor]) -> None:
        self.tensors = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
        self.names = tuple(self.tensors)

    def copy_in(self, name: str, tensor: torch.Tensor) -> None:
        self.tensors[name].copy_(tensor)

    def mark_unusable(self, reason: str) -> None:
        self.unusable = reason


def split_name(name: str, halves: tuple[str, ...]) -> tuple[str, str | None]:
    """Split "layers.3.self_attn.q_a_proj.weight" into its layer's prefix and its half, None if it is neither."""
    return next(((name.removesuffix(half), half) for half in halves if name.endswith(half)), (name, None))


def write_case_checkpoint(folder: str | Path, seed: int = 0) -> Path:
    """Write one safetensors file with pairs of both kinds; returns its path.

    A layer has a norm, the attention's `kv_a_proj`, `o_proj`, `q_a_proj` (BF16), routed experts (I8 with F32 scales:
    the scale comes first in the file) and shared experts (I32 with BF16 scales: the weight comes first).
    """
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        for name, *shape in (("input_layernorm.weight", 64), (KV_A, 24, 64), ("self_attn.o_proj.weight", 128, 64)):
            tensors[prefix + name] = torch.randn(shape, generator=random).bfloat16()
        tensors[prefix + Q_A] = torch.randn(40, 64, generator=random).bfloat16()
        for kind, dtype, scale in (("experts", torch.int8, torch.float32), ("shared", torch.int32, torch.bfloat16)):
            weight = torch.randint(-128, 128, (64, 64), generator=random, dtype=dtype)
            tensors[f"{prefix}mlp.{kind}.weight"] = weight
            tensors[f"{prefix}mlp.{kind}.weight_scale"] = torch.rand(64, generator=random).to(scale)
    path = Path(folder) / "model.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path


def expected_parameters(stored: dict[str, torch.Tensor], case: str) -> dict[str, torch.Tensor]:
    """The parameters that a case's loader has to make of a checkpoint's tensors, computed from the whole at once."""
    if case == "pair_cache":
        layers = [name.removesuffix(KV_A) for name in stored if name.endswith(KV_A)]
        rest = {name: tensor for name, tensor in stored.items() if not name.endswith((KV_A, Q_A))}
        return rest | {f"{layer}{FUSED}": torch.cat([stored[layer + Q_A], stored[layer + KV_A]]) for layer in layers}
    if case == "pending_scale":
        scaled = [name for name in stored if name + "_scale" in stored]
        rest = {name: tensor for name, tensor in stored.items() if ".mlp." not in name}
        return rest | {name: dequantise(name, stored) for name in scaled}
    return stored
