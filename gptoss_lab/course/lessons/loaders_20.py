"""The three ways into SGLang's gpt-oss, rebuilt in small as they are in 0.5.23; `mended_20` has the mends.

What the halves of the original do with a tensor (slices for tensor parallelism, padding) is left out: here each goes
into the model as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch

from gptoss_lab.mxfp4 import dequantise
from gptoss_lab.weights import loading
from gptoss_lab.weights.report import Target

Item = tuple[str, torch.Tensor]
Weights = Iterable[Item]

QUARK_EXPERT = re.compile(r"\.mlp\.experts\.\d+\.(gate_up|down)_proj\.(weight|weight_scale|input_scale|bias)$")
PAIR = (".blocks", ".scales")
RENAMED = {
    "embedding.": "model.embed_tokens.",
    "unembedding.": "lm_head.",
    "norm.scale": "model.norm.weight",
    ".attn.norm.scale": ".input_layernorm.weight",
    ".attn.qkv.": ".self_attn.qkv.",
    ".attn.out.": ".self_attn.o_proj.",
    ".mlp.norm.scale": ".post_attention_layernorm.weight",
    ".mlp.gate.": ".mlp.router.",
    ".mlp.mlp1_weight": ".mlp.experts.gate_up_proj",
    ".mlp.mlp2_weight": ".mlp.experts.down_proj",
    ".mlp.mlp1_bias": ".mlp.experts.gate_up_proj_bias",
    ".mlp.mlp2_bias": ".mlp.experts.down_proj_bias",
}
HEADS_PER_KV = 4  # query rows to rows of a key, in the fused qkv


def canonical_name(name: str) -> str:
    """Turn a name of the original checkpoint into the model's: "block.3.attn.out.bias" is "model.layers.3...."."""
    found = re.match(r"(block\.\d+)(\..+)", name)
    layer, rest = found.groups() if found else ("", name)
    old = next((old for old in RENAMED if rest.startswith(old)), rest)
    return layer.replace("block.", "model.layers.") + RENAMED.get(old, old) + rest[len(old) :]


def parts(name: str, tensor: torch.Tensor) -> Iterator[Item]:
    """Give a tensor of the original checkpoint the model's name, and cut a fused qkv into its three. Views, no copies.

    qkv [q + k + v rows, ...] has 4 query rows for a key row and for a value row.
    """
    name = canonical_name(name)
    if ".qkv." not in name:
        yield name, tensor
        return
    rows = len(tensor) // (HEADS_PER_KV + 2)
    for part, piece in zip("qkv", tensor.split([HEADS_PER_KV * rows, rows, rows]), strict=True):
        yield name.replace(".qkv.", f".{part}_proj."), piece


def load_mxfp4(model: Target, weights: Weights) -> None:
    """The mended path: experts as they arrive, the rest owned."""
    loading.host_copies(model, weights)


def load_quark(model: Target, weights: Weights) -> None:
    """The Quark path, as `load_gptoss_weight_quark`: two lists."""
    experts, normal = [], []
    for name, tensor in weights:
        (experts if QUARK_EXPERT.search(name) else normal).append((name, tensor))
    copy_all(model, experts)
    copy_all(model, sorted(normal))


def load_bf16(model: Target, weights: Weights) -> None:
    """The path without quantisation, as `_load_normal_weights`: pairs are dequantised, names put right and sorted."""
    stored = dict(weights)
    for key in [name.removesuffix(".blocks") for name in stored if name.endswith(".blocks")]:
        stored[key] = dequantise(stored.pop(key + ".blocks"), stored.pop(key + ".scales"))
    for name, tensor in sorted(stored.items()):
        copy_all(model, parts(name, tensor))


def copy_all(model: Target, weights: Weights) -> None:
    """Copy each tensor into its parameter."""
    for name, tensor in weights:
        model.copy_in(name, tensor)
