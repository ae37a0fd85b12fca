"""Three loaders as patients, each with a checkpoint of its own format and what it should make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from gptoss_lab.course.lessons import loaders_20
from gptoss_lab.course.lessons.loaders_20 import PAIR, parts
from gptoss_lab.course.lessons.settled_22 import settled
from gptoss_lab.mxfp4 import dequantise
from gptoss_lab.weights.borrow import AuditReport, StaleViewError, audit, guard
from gptoss_lab.weights.cases import Parameters, split_name
from gptoss_lab.weights.compare import differing
from gptoss_lab.weights.layout import TensorSpec
from gptoss_lab.weights.plan import Plan, plan
from gptoss_lab.weights.streaming import stream

Weights = Iterable[tuple[str, torch.Tensor]]
Shapes = dict[str, tuple[int, ...]]
LAYERS, EXPERTS, HIDDEN, VOCAB, KV = 6, 8, 64, 128, 16
OUTPUTS = {"gate_up": 2 * HIDDEN, "down": HIDDEN}  # rows of an expert's projections


def unchanged(weights: Weights) -> Weights:
    """No tool."""
    return weights


@dataclass(frozen=True)
class Patient:
    """A loader and its checkpoint. `expected` is computed from what safetensors reads, by name of the model."""

    name: str
    load: Callable
    path: Path

    @cached_property
    def expected(self) -> dict[str, torch.Tensor]:
        return put_together(load_file(self.path))

    def plan(self, limit: int) -> Plan:
        """The plan of its stream."""
        return plan(self.path, limit)

    def stream(self, limit: int) -> Weights:
        """Its checkpoint through the real streamer; a late read finds the new bytes, each time."""
        return settled(stream(self.path, memory_limit=limit, concurrency=1), self.plan(limit))

    def wrong(self, limit: int, load: Callable | None = None, tool: Callable[[Weights], Weights] = unchanged) -> list:
        """Load, with a tool around the stream, and name the parameters that are not as expected."""
        model = Parameters(self.expected)
        (load or self.load)(model, tool(self.stream(limit)))
        return differing(self.expected, model.tensors)

    def diagnose(self, load: Callable | None = None) -> tuple[AuditReport, StaleViewError | None]:
        """Load at a quarter of the checkpoint: the audit's report and the guard's error, None if it was silent."""
        limit, seen = self.limits()["quarter"], []
        self.wrong(limit, load, tool=lambda weights: seen.append(audit(weights)) or seen[0])
        try:
            self.wrong(limit, load, tool=guard)
        except StaleViewError as error:
            return seen[0].report(), error
        return seen[0].report(), None

    def limits(self) -> dict[str, int]:
        """Four limits: the smallest buffer, a quarter of the checkpoint, half of it, no limit."""
        total = self.plan(-1).total_bytes
        return {"0": 0, "quarter": total // 4, "half": total // 2, "none": -1}


def put_together(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a model has to hold: pairs of the original format dequantised, its names put right, all else as stored."""
    made = {}
    for name, tensor in stored.items():
        key, half = split_name(name, PAIR)
        if half is None:
            made |= dict(parts(name, tensor))
        else:
            made |= dict(parts(key, dequantise(*(stored[key + each] for each in PAIR))))
    return made


def open_patients(folder: str | Path) -> list[Patient]:
    """Write a checkpoint for each loader to a folder, where it is not yet, and return the patients."""
    made = []
    for name, shapes in (("mxfp4", mxfp4_shapes()), ("quark", quark_shapes()), ("bf16", original_shapes())):
        path = Path(folder) / f"{name}.safetensors"
        if not path.exists():  # a file that is written anew changes under those who have it mapped
            save_file(fill(shapes), path)
        made.append(Patient(name, getattr(loaders_20, f"load_{name}"), path))
    return made


def fill(shapes: Shapes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors: packed numbers and scales in bytes, the rest in BF16."""
    random = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        if name.endswith(("scale", "scales")) and "norm" not in name:
            made[name] = torch.randint(120, 130, shape, generator=random, dtype=torch.uint8)
        elif "blocks" in name or (".experts." in name and name.endswith(".weight")):
            made[name] = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
        else:
            made[name] = torch.randn(shape, generator=random).bfloat16()
    return made


def dense_shapes() -> Shapes:
    """All but the experts, under Hugging Face's names."""
    shapes: Shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        rows = {"q": 4 * KV, "k": KV, "v": KV, "o": HIDDEN}
        shapes |= {f"{prefix}self_attn.{part}_proj.weight": (count, HIDDEN) for part, count in rows.items()}
        shapes |= {prefix + "input_layernorm.weight": (HIDDEN,), prefix + "mlp.router.weight": (EXPERTS, HIDDEN)}
    return shapes | {"model.norm.weight": (HIDDEN,)}


def mxfp4_shapes() -> Shapes:
    """Experts of a layer in one tensor, as OpenAI's release has them at Hugging Face."""
    shapes = dense_shapes()
    for layer in range(LAYERS):
        for part, rows in OUTPUTS.items():
            prefix = f"model.layers.{layer}.mlp.experts.{part}_proj"
            shapes[f"{prefix}_blocks"] = (EXPERTS, rows, HIDDEN // 32, 16)
            shapes[f"{prefix}_scales"] = (EXPERTS, rows, HIDDEN // 32)
            shapes[f"{prefix}_bias"] = (EXPERTS, rows)
    return shapes


def quark_shapes() -> Shapes:
    """Each expert by itself, as AMD's Quark writes them."""
    shapes = dense_shapes()
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            for part, rows in OUTPUTS.items():
                prefix = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj."
                shapes[prefix + "weight"] = (rows, HIDDEN // 2)
                shapes[prefix + "weight_scale"] = (rows, HIDDEN // 32)
                shapes[prefix + "bias"] = (rows,)
    return shapes


def original_shapes() -> Shapes:
    """The original checkpoint's names: q, k and v in one tensor, packed experts as a pair."""
    shapes: Shapes = {"embedding.weight": (VOCAB, HIDDEN), "unembedding.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"block.{layer}."
        shapes |= {prefix + "attn.qkv.weight": (6 * KV, HIDDEN), prefix + "attn.qkv.bias": (6 * KV,)}
        shapes |= {prefix + "attn.out.weight": (HIDDEN, 4 * KV), prefix + "attn.norm.scale": (HIDDEN,)}
        shapes |= {prefix + "mlp.gate.weight": (EXPERTS, HIDDEN), prefix + "mlp.norm.scale": (HIDDEN,)}
        for place, rows in enumerate(OUTPUTS.values(), 1):
            shapes[f"{prefix}mlp.mlp{place}_weight.blocks"] = (EXPERTS, rows, HIDDEN // 32, 16)
            shapes[f"{prefix}mlp.mlp{place}_weight.scales"] = (EXPERTS, rows, HIDDEN // 32)
            shapes[f"{prefix}mlp.mlp{place}_bias"] = (EXPERTS, rows)
    return shapes | {"norm.scale": (HIDDEN,)}


def in_bf16(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """The same checkpoint with its packed experts in BF16: blocks [..., G, 16] become [..., 32 G], scales go."""
    made = []
    for spec in specs:
        if spec.name.endswith("_blocks"):
            *outer, groups, _ = spec.shape
            made.append(TensorSpec(spec.name.removesuffix("_blocks"), "BF16", (*outer, 32 * groups)))
        elif not spec.name.endswith("_scales"):
            made.append(spec)
    return made
