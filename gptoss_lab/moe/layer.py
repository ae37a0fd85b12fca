"""A layer of experts with random weights, to measure with: the router's product, the routing, the experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gptoss_lab.config import Config
from gptoss_lab.model import Experts
from gptoss_lab.moe.experts import prepare_experts


@dataclass(frozen=True)
class Layer:
    """A layer's weights: the router's, and the experts' as the product that runs them wants them."""

    router: torch.Tensor  # bfloat16 [experts, hidden]
    bias: torch.Tensor  # bfloat16 [experts]
    experts: Any


def make_experts(config: Config, seed: int, device: str = "cuda") -> Experts:
    """Make experts of random MXFP4 bytes, with scales that keep the values at the size of trained ones."""
    random = torch.Generator(device).manual_seed(seed)
    experts = Experts(config, torch.bfloat16).to(device)
    for name, parameter in experts.named_parameters():
        if name.endswith("blocks"):
            parameter.data.random_(0, 256, generator=random)
        elif name.endswith("scales"):
            parameter.data.random_(118, 122, generator=random)
        else:
            parameter.data.normal_(std=0.1, generator=random)
    return experts


def make_layer(
    config: Config, seed: int, prepare: Callable[[Experts], Any] = prepare_experts, device: str = "cuda"
) -> Layer:
    """Make a layer; `prepare` turns its `Experts` into what runs them."""
    random = torch.Generator(device).manual_seed(1000 + seed)
    router = torch.randn(config.num_local_experts, config.hidden_size, generator=random, device=device)
    bias = torch.randn(config.num_local_experts, generator=random, device=device)
    return Layer(router.bfloat16() / 32, bias.bfloat16(), prepare(make_experts(config, seed, device)))


def make_hidden(config: Config, tokens: int, device: str = "cuda") -> torch.Tensor:
    """Make a layer's input, bfloat16 [tokens, hidden]."""
    random = torch.Generator(device).manual_seed(tokens)
    return torch.randn(tokens, config.hidden_size, generator=random, device=device).bfloat16()
