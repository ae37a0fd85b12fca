"""What a gpt-oss checkpoint consists of: names, shapes, dtypes, sizes and order, from the config alone.

No file is read here, so the plan for gpt-oss-120b costs nothing. The rules were read off the published
gpt-oss-20b files and give their sizes to the byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

from gptoss_lab.config import Config
from gptoss_lab.mxfp4 import BLOCK

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of one element, by safetensors' code of the dtype."""

GPT_OSS_20B = Config()
GPT_OSS_120B = Config(num_hidden_layers=36, num_local_experts=128)
TINY = Config(
    num_hidden_layers=8,
    vocab_size=2048,
    hidden_size=64,
    intermediate_size=64,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
)
"""The shape of `data/capitals`."""

SHARD_LIMIT = 4_800_000_000
"""Bytes of tensors in one file of the published checkpoints, at most."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its bytes. `dtype` is safetensors' code, such as "BF16" or "U8"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def is_expert(self) -> bool:
        """Whether the tensor belongs to the experts, told by its name as SGLang's loader tells it."""
        return ".experts" in self.name


def tensor_specs(config: Config) -> list[TensorSpec]:
    """List every tensor of a gpt-oss checkpoint in the order in which the published files were filled.

    Layers come in the order of their numbers as text: 0, 1, 10, 11, ..., 2, 20, ... The embedding, the last
    norm and `lm_head`, which is a tensor of its own, follow at the end.
    """
    layers = sorted(range(config.num_hidden_layers), key=str)
    specs = [spec for layer in layers for spec in _layer_specs(config, f"model.layers.{layer}.")]
    return specs + [
        TensorSpec("model.embed_tokens.weight", "BF16", (config.vocab_size, config.hidden_size)),
        TensorSpec("model.norm.weight", "BF16", (config.hidden_size,)),
        TensorSpec("lm_head.weight", "BF16", (config.vocab_size, config.hidden_size)),
    ]


def file_order(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Sort tensors as safetensors lays them out within one file: wider dtypes first, then by name."""
    return sorted(specs, key=lambda spec: (-DTYPE_BYTES[spec.dtype], spec.name))


def shard(specs: Iterable[TensorSpec], limit: int = SHARD_LIMIT) -> list[list[TensorSpec]]:
    """Split tensors over files, in their order.

    A new file starts when the next tensor would pass `limit` bytes.
    A tensor larger than the limit gets a file of its own. Each file's list is in the order of writing; within
    the file the bytes lie in `file_order`.
    """
    if limit < 1:
        raise ValueError(f"the shard limit is {limit} bytes: give at least 1")
    shards: list[list[TensorSpec]] = []
    used = 0
    for spec in specs:
        if not shards or (used + spec.nbytes > limit and shards[-1]):
            shards.append([])
            used = 0
        shards[-1].append(spec)
        used += spec.nbytes
    return shards


def shard_names(count: int) -> list[str]:
    """Return the file names of a checkpoint in `count` shards."""
    return [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]


def file_bytes(specs: Iterable[TensorSpec]) -> int:
    """Return the size in bytes of a safetensors file with these tensors: 8, the header, the tensors.

    The header is compact JSON in file order, padded with spaces to a multiple of 8, with no `__metadata__`.
    """
    header, position = {}, 0
    for spec in file_order(specs):
        offsets = [position, position + spec.nbytes]
        header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
        position += spec.nbytes
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + math.ceil(length / 8) * 8 + position


def _layer_specs(config: Config, prefix: str) -> list[TensorSpec]:
    """List one layer's 19 tensors."""
    hidden, inner, experts = config.hidden_size, config.intermediate_size, config.num_local_experts
    q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    h_blocks, i_blocks = hidden // BLOCK, inner // BLOCK
    table = [
        ("input_layernorm.weight", "BF16", (hidden,)),
        ("self_attn.o_proj.bias", "BF16", (hidden,)),
        ("self_attn.o_proj.weight", "BF16", (hidden, q)),
        ("self_attn.q_proj.bias", "BF16", (q,)),
        ("self_attn.k_proj.bias", "BF16", (kv,)),
        ("self_attn.v_proj.bias", "BF16", (kv,)),
        ("self_attn.q_proj.weight", "BF16", (q, hidden)),
        ("self_attn.k_proj.weight", "BF16", (kv, hidden)),
        ("self_attn.v_proj.weight", "BF16", (kv, hidden)),
        ("self_attn.sinks", "BF16", (config.num_attention_heads,)),
        ("mlp.router.bias", "BF16", (experts,)),
        ("mlp.router.weight", "BF16", (experts, hidden)),
        ("mlp.experts.gate_up_proj_bias", "BF16", (experts, 2 * inner)),
        ("mlp.experts.gate_up_proj_blocks", "U8", (experts, 2 * inner, h_blocks, BLOCK // 2)),
        ("mlp.experts.gate_up_proj_scales", "U8", (experts, 2 * inner, h_blocks)),
        ("mlp.experts.down_proj_bias", "BF16", (experts, hidden)),
        ("mlp.experts.down_proj_blocks", "U8", (experts, hidden, i_blocks, BLOCK // 2)),
        ("mlp.experts.down_proj_scales", "U8", (experts, hidden, i_blocks)),
        ("post_attention_layernorm.weight", "BF16", (hidden,)),
    ]
    return [TensorSpec(prefix + name, dtype, shape) for name, dtype, shape in table]
