"""A layer to measure with: the shapes of a config, the same for a seed, and experts that are prepared as asked."""

from __future__ import annotations

import torch

from gptoss_lab.model import Experts
from gptoss_lab.moe.layer import make_experts, make_hidden, make_layer
from gptoss_lab.weights.layout import TINY


def test_a_layer_has_the_config_s_shapes(device):
    layer = make_layer(TINY, seed=0, prepare=lambda experts: experts, device=device)
    assert layer.router.shape == (TINY.num_local_experts, TINY.hidden_size)
    assert layer.bias.shape == (TINY.num_local_experts,)
    assert isinstance(layer.experts, Experts)
    assert make_hidden(TINY, 3, device).shape == (3, TINY.hidden_size)


def test_a_seed_makes_one_layer_and_another_seed_another(device):
    first, again, other = (make_experts(TINY, seed, device).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_random_experts_keep_values_in_range(device):
    """Scales like trained ones: what comes out is finite and neither vanishes nor explodes."""
    hidden = make_hidden(TINY, 5, device).float()
    layer = make_layer(TINY, seed=0, prepare=lambda experts: experts, device=device)
    out = layer.experts.float()(hidden, (hidden @ layer.router.float().T) + layer.bias.float())
    assert out.isfinite().all() and 1e-3 < out.std() < 1e3
