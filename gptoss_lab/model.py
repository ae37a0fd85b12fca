"""gpt-oss in plain PyTorch, to be read from top to bottom.

The model of the gpt-oss model card (arXiv 2508.10925): a decoder with RMSNorm (1910.07467), rotary positions
(2104.09864) stretched by YaRN (2309.00071), grouped-query attention (2305.13245) with a learned sink for each
head (2309.17453) and a sliding window on every other layer, and a mixture of experts whose weights stay MXFP4
bytes until they are used. Parameters have the checkpoint's names. There is no batch: one sequence at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from gptoss_lab.config import Config, ConfigError, Yarn
from gptoss_lab.decoding import Cache, Generation, generate, load_tokenizer
from gptoss_lab.mxfp4 import BLOCK, dequantise
from gptoss_lab.parameters import Embedding, Linear, Loadable, ModelNotReady, TensorRefused, empty

__all__ = [
    "Cache", "Config", "ConfigError", "Experts", "Generation", "GptOss", "ModelNotReady", "TensorRefused",
    "Yarn", "generate", "load_model", "load_tokenizer",
]  # fmt: skip


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = empty(size, dtype=dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # In float32: the square of a large BF16 value would overflow, and the mean would lose digits.
        wide = x.float()  # [tokens, hidden]
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)  # [tokens, hidden]
        return (self.weight * wide).to(x.dtype)  # [tokens, hidden]


def rotation(config: Config, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The cosine and sine of each position's angles, float32 [tokens, head_dim / 2].

    YaRN keeps the frequencies that turn often within the original context, divides the slow ones by `factor`,
    and blends between the two. It also scales queries and keys a little, which sharpens attention.
    """
    yarn, size = config.rope_scaling, config.head_dim

    def pair_that_turns(times: float) -> float:
        wavelength = yarn.original_max_position_embeddings / (times * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(config.rope_theta))

    first, last = pair_that_turns(yarn.beta_fast), pair_that_turns(yarn.beta_slow)
    if yarn.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    pairs = torch.arange(size // 2, device=positions.device, dtype=torch.float32)  # [head_dim / 2]
    slow = ((pairs - first) / max(last - first, 0.001)).clamp(0, 1)  # [head_dim / 2], 0: keep, 1: divide
    frequency = config.rope_theta ** -(2 * pairs / size)  # [head_dim / 2]
    frequency = frequency * (1 - slow) + frequency / yarn.factor * slow  # [head_dim / 2]
    angles = positions[:, None] * frequency  # [tokens, head_dim / 2]
    concentration = 1 + 0.1 * math.log(yarn.factor)
    return angles.cos() * concentration, angles.sin() * concentration


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of x [tokens, heads, head_dim] by its token's angles."""
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)  # [tokens, 1, head_dim / 2]
    left, right = x.chunk(2, dim=-1)  # [tokens, heads, head_dim / 2] each
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)  # [tokens, heads, head_dim]


def invisible(positions: Tensor, seen: int, window: int | None) -> Tensor:
    """Which of the seen tokens a token must not look at: later ones, and ones `window` or more steps back."""
    back = positions[:, None] - torch.arange(seen, device=positions.device)  # [tokens, seen]
    return (back < 0) | (back >= window) if window else back < 0  # [tokens, seen]


class Attention(nn.Module):
    def __init__(self, config: Config, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.window, self.head_dim = layer, config.window(layer), config.head_dim
        self.kv_heads = config.num_key_value_heads
        query_size, kv_size = config.num_attention_heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = Linear(config.hidden_size, query_size, dtype)
        self.k_proj = Linear(config.hidden_size, kv_size, dtype)
        self.v_proj = Linear(config.hidden_size, kv_size, dtype)
        self.o_proj = Linear(query_size, config.hidden_size, dtype)
        self.sinks = empty(config.num_attention_heads, dtype=dtype)

    def forward(self, x: Tensor, positions: Tensor, turn: tuple, cache: Cache | None) -> Tensor:
        q = rotate(self.q_proj(x).unflatten(1, (-1, self.head_dim)), *turn)  # [tokens, heads, head_dim]
        k = rotate(self.k_proj(x).unflatten(1, (-1, self.head_dim)), *turn)  # [tokens, kv_heads, head_dim]
        v = self.v_proj(x).unflatten(1, (-1, self.head_dim))  # [tokens, kv_heads, head_dim]
        if cache is not None:
            k, v = cache.append(self.layer, k, v)  # [seen, kv_heads, head_dim]
        q = q.unflatten(1, (self.kv_heads, -1))  # [tokens, kv_heads, group, head_dim]
        scores = torch.einsum("tkgd,skd->kgts", q, k) * self.head_dim**-0.5  # [kv_heads, group, tokens, seen]
        scores = scores.masked_fill(invisible(positions, len(k), self.window), -math.inf)
        # The sink is a score with no value behind it: a head that finds nothing gives its weight away there.
        sinks = self.sinks.view(self.kv_heads, -1, 1, 1)  # [kv_heads, group, 1, 1]
        sinks = sinks.expand(-1, -1, len(x), 1)  # [kv_heads, group, tokens, 1]
        weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]  # [kv_heads, group, tokens, seen]
        mixed = torch.einsum("kgts,skd->tkgd", weights, v)  # [tokens, kv_heads, group, head_dim]
        return self.o_proj(mixed.flatten(1))  # [tokens, hidden]


def route(router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Each token's experts and their shares: the top k logits, with a softmax over those k alone."""
    top, chosen = router_logits.topk(top_k, dim=-1)  # [tokens, k] each
    return top.softmax(-1), chosen  # [tokens, k] each


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """gpt-oss's activation. Gate and up are interleaved: [tokens, 2 * inner] -> [tokens, inner]."""
    gate, up = gate_up[..., 0::2], gate_up[..., 1::2]  # [tokens, inner] each
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)  # [tokens, inner] each
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)  # [tokens, inner]


class Experts(nn.Module):
    """All experts of a layer. The weights stay MXFP4 bytes; a chosen expert's are dequantised when used."""

    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.top_k, self.limit = config.num_experts_per_tok, config.swiglu_limit
        count, hidden, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.gate_up_proj_blocks = empty(count, 2 * inner, hidden // BLOCK, BLOCK // 2, dtype=torch.uint8)
        self.gate_up_proj_scales = empty(count, 2 * inner, hidden // BLOCK, dtype=torch.uint8)
        self.gate_up_proj_bias = empty(count, 2 * inner, dtype=dtype)
        self.down_proj_blocks = empty(count, hidden, inner // BLOCK, BLOCK // 2, dtype=torch.uint8)
        self.down_proj_scales = empty(count, hidden, inner // BLOCK, dtype=torch.uint8)
        self.down_proj_bias = empty(count, hidden, dtype=dtype)

    def forward(self, hidden: Tensor, router_logits: Tensor) -> Tensor:
        """hidden [tokens, hidden], router_logits [tokens, experts] -> [tokens, hidden]."""
        shares, chosen = route(router_logits, self.top_k)  # [tokens, k] each
        output = torch.zeros_like(hidden)  # [tokens, hidden]
        for expert in chosen.unique().tolist():
            token, pick = torch.where(chosen == expert)  # [hits] each
            result = self.run_expert(expert, hidden[token])  # [hits, hidden]
            output.index_add_(0, token, result * shares[token, pick, None])
        return output

    def run_expert(self, expert: int, x: Tensor) -> Tensor:
        """One expert on its tokens: [hits, hidden] -> [hits, hidden]."""
        up = dequantise(self.gate_up_proj_blocks[expert], self.gate_up_proj_scales[expert], x.dtype)
        down = dequantise(self.down_proj_blocks[expert], self.down_proj_scales[expert], x.dtype)
        inner = swiglu(F.linear(x, up, self.gate_up_proj_bias[expert]), self.limit)  # [hits, inner]
        return F.linear(inner, down, self.down_proj_bias[expert])  # [hits, hidden]


class Mlp(nn.Module):
    def __init__(self, config: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.router = Linear(config.hidden_size, config.num_local_experts, dtype)
        self.experts = Experts(config, dtype)

    def forward(self, x: Tensor, experts: Callable | None) -> Tensor:
        run = experts or Experts.__call__
        output = run(self.experts, x, self.router(x))  # [tokens, hidden]
        if output.shape != x.shape:
            raise ValueError(f"experts returned {list(output.shape)}: return a row per token, {list(x.shape)}")
        return output.to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config: Config, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, layer, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = Mlp(config, dtype)

    def forward(self, x: Tensor, positions: Tensor, turn: tuple, cache: Cache | None, experts) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, turn, cache)  # [tokens, hidden]
        return x + self.mlp(self.post_attention_layernorm(x), experts)  # [tokens, hidden]


class GptOss(Loadable):
    """gpt-oss, made empty: `copy_in` every tensor of a checkpoint, then call it.

    `dtype` is that of the arithmetic and of all parameters but the experts' blocks and scales (uint8).
    """

    def __init__(self, config: Config, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict()  # the checkpoint puts all but lm_head under this name
        self.model["embed_tokens"] = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.model["layers"] = nn.ModuleList(Layer(config, i, dtype) for i in range(config.num_hidden_layers))
        self.model["norm"] = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, dtype, bias=False)

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder's layers; `layers[0].mlp.experts` holds the first layer's experts."""
        return self.model["layers"]

    def forward(
        self, tokens: Tensor | Sequence[int], cache: Cache | None = None, experts: Callable | None = None
    ) -> Tensor:
        """Tokens [n] or [1, n] -> logits [n, vocab], for each token those of the one that follows.

        With a cache, `tokens` are only the new ones. `experts(layer, hidden, router_logits)` stands in for
        every expert layer: it gets that layer's `Experts`, hidden [tokens, hidden] and router_logits
        [tokens, experts], and returns [tokens, hidden].

        Raises:
            ModelNotReady: tensors are missing, or a load broke off.
            ValueError: more than one sequence, or `experts` returned another shape.
        """
        self.require_ready()
        tokens = torch.as_tensor(tokens, device=self.lm_head.weight.device)
        tokens = tokens[0] if tokens.ndim == 2 and len(tokens) == 1 else tokens  # [tokens]
        if tokens.ndim != 1:
            raise ValueError(f"tokens have shape {list(tokens.shape)}: pass one sequence, [n] or [1, n]")
        start = cache.length if cache is not None else 0
        positions = torch.arange(start, start + len(tokens), device=tokens.device)  # [tokens]
        turn = rotation(self.config, positions)  # [tokens, head_dim / 2] each
        x = self.model["embed_tokens"](tokens)  # [tokens, hidden]
        for layer in self.layers:
            x = layer(x, positions, turn, cache, experts)  # [tokens, hidden]
        return self.lm_head(self.model["norm"](x))  # [tokens, vocab]


def load_model(folder: str | Path, dtype: torch.dtype = torch.float32) -> GptOss:
    """The healthy baseline: read a checkpoint's files with safetensors and copy each tensor in.

    If there is an index, only the files that it names are read: others may be left from an older checkpoint.
    """
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    model = GptOss(Config.from_file(folder), dtype)
    for file in files:
        for name, tensor in load_file(folder / file).items():
            model.copy_in(name, tensor)
    model.require_ready()
    return model
