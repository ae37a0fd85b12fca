"""Writing a checkpoint: shards in gpt-oss's layout, the index and config.json, complete or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from gptoss_lab.config import Config
from gptoss_lab.weights.layout import SHARD_LIMIT, TensorSpec, shard, shard_names, tensor_specs

CODES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.uint16: "U16", torch.int16: "I16", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.uint32: "U32", torch.int32: "I32", torch.float32: "F32",
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.complex64: "C64",
}  # fmt: skip
"""safetensors' code of each torch dtype."""


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Describe a tensor as a header would. Raises ValueError for a dtype that safetensors has no code for."""
    if tensor.dtype not in CODES:
        raise ValueError(f"tensor {name!r} is {tensor.dtype}, which safetensors cannot hold: convert it")
    return TensorSpec(name, CODES[tensor.dtype], tuple(tensor.shape))


def write_checkpoint(
    folder: str | Path,
    tensors: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    shard_limit: int = SHARD_LIMIT,
) -> None:
    """Write tensors as shards with an index, and `config` as config.json.

    Tensors fill the shards in the order of the mapping; `tensor_specs` gives gpt-oss's order. The folder is
    written beside its place and renamed, so it is complete or not there. It must not exist yet, or be empty.
    Files get mode 0644 (safetensors alone writes 0600) and no `__metadata__`, as in the published files.
    Raises FileExistsError if the folder has content, ValueError for no tensor, a limit below 1 or a dtype
    without a code.
    """
    specs = [spec_of(name, tensor) for name, tensor in tensors.items()]
    _write_folder(Path(folder), specs, lambda spec: tensors[spec.name], config, shard_limit)


def write_random_checkpoint(folder: str | Path, config: Config, shard_limit: int = SHARD_LIMIT, seed: int = 0) -> None:
    """Write a gpt-oss checkpoint of any size with random weights, for tests and measurements.

    Weights are small: dense ones have a standard deviation of 0.02, norms are 1, and scale bytes lie a little
    below 127, so that logits stay finite. One shard at a time is in memory. Same folder rules as
    `write_checkpoint`.
    """
    generator = torch.Generator().manual_seed(seed)

    def make(spec: TensorSpec) -> torch.Tensor:
        if spec.name.endswith("_blocks"):
            return torch.randint(0, 256, spec.shape, dtype=torch.uint8, generator=generator)
        if spec.name.endswith("_scales"):
            return torch.randint(118, 123, spec.shape, dtype=torch.uint8, generator=generator)
        if spec.name.endswith("norm.weight"):
            return torch.ones(spec.shape, dtype=torch.bfloat16)
        return torch.empty(spec.shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)

    _write_folder(Path(folder), tensor_specs(config), make, config_json(config), shard_limit)


def config_json(config: Config) -> dict[str, Any]:
    """Return a config.json for a `Config`, with the fields that transformers and serving engines look for."""
    given = dataclasses.asdict(config)
    layer_types = config.layer_types or tuple(
        "full_attention" if layer % 2 else "sliding_attention" for layer in range(config.num_hidden_layers)
    )
    ends = list(config.eos_token_id)
    original = config.rope_scaling.original_max_position_embeddings
    return given | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "dtype": "bfloat16",
        "attention_bias": True,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "max_position_embeddings": int(original * config.rope_scaling.factor),
        "layer_types": list(layer_types),
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "rope_scaling": {"rope_type": "yarn"} | given["rope_scaling"],
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    }


def _write_folder(
    folder: Path,
    specs: Iterable[TensorSpec],
    make: Callable[[TensorSpec], torch.Tensor],
    config: Mapping[str, Any],
    limit: int,
) -> None:
    """Write everything beside `folder`, then rename."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not an empty folder: remove it, or choose another place")
    shards = shard(specs, limit)
    if not shards:
        raise ValueError(f"no tensor to write into {folder}: give at least one")
    names = shard_names(len(shards))
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    beside.mkdir(parents=True)
    try:
        for name, inside in zip(names, shards, strict=True):
            save_file({spec.name: make(spec).contiguous() for spec in inside}, beside / name)
        weight_map = {spec.name: name for name, inside in zip(names, shards, strict=True) for spec in inside}
        total = sum(spec.nbytes for inside in shards for spec in inside)
        _write_json(beside / "config.json", dict(config))
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(beside / "model.safetensors.index.json", index)
        for path in beside.iterdir():
            path.chmod(0o644)
        beside.replace(folder)  # an empty folder may be replaced
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
