"""What `health` says of a model's outputs, on the real checkpoint and on every small row of logits."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from gptoss_lab.course.lab import CAPITALS
from gptoss_lab.health import Step, first_nonfinite, trace, why_token_zero
from gptoss_lab.model import load_model

NAN, INF = float("nan"), float("inf")
TOKENS = torch.tensor([5, 6, 7])


@pytest.fixture
def model():
    return load_model(CAPITALS)


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class First(nn.Module):
    def forward(self, pair):
        return pair[0]


def test_trace_describes_each_output_in_the_order_in_which_modules_finish():
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Flatten(0)))
    steps = trace(model, lambda: model(torch.tensor([[1.0, -9.0], [NAN, -INF]])))
    assert steps == [Step(name, 9.0, 0.5) for name in ("0", "1.0", "1", "")]


def test_trace_leaves_out_what_is_no_tensor():
    model = nn.Sequential(Pair(), First())
    assert [step.name for step in trace(model, lambda: model(torch.ones(2)))] == ["1", ""]


@pytest.mark.parametrize(
    ("output", "largest", "nonfinite"),
    [
        (torch.tensor([NAN, INF]), 0.0, 1.0),
        (torch.zeros(0), 0.0, 0.0),
        (torch.tensor([-3, 2]), 3.0, 0.0),
        (torch.tensor([3e38, 1.0], dtype=torch.bfloat16), torch.tensor(3e38, dtype=torch.bfloat16).item(), 0.0),
    ],
    ids=["nothing finite", "empty", "integers", "bfloat16"],
)
def test_trace_takes_any_output(output, largest, nonfinite):
    model = nn.Identity()
    assert trace(model, lambda: model(output)) == [Step("", largest, nonfinite)]


def test_trace_leaves_no_hook_even_if_the_run_fails():
    model = nn.Sequential(nn.Linear(2, 2))
    trace(model, lambda: model(torch.ones(2)))
    with pytest.raises(RuntimeError):
        trace(model, lambda: model(torch.ones(3)))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_healthy_model_is_finite(model):
    assert first_nonfinite(model, lambda: model(TOKENS)) is None
    finished = [step.name for step in trace(model, lambda: model(TOKENS))]
    assert finished[0] == "model.embed_tokens" and finished[-1] == ""


@pytest.mark.parametrize(
    "victim", ["model.layers.3.post_attention_layernorm", "model.layers.0.self_attn.q_proj", "lm_head"]
)
def test_the_first_culprit_of_a_real_model_is_named(model, victim):
    model.get_submodule(victim).weight[..., -1] = INF
    assert first_nonfinite(model, lambda: model(TOKENS)) == victim


def test_one_nan_among_very_many_numbers_is_seen():
    model = nn.Identity()
    logits = torch.zeros(1 << 25, dtype=torch.bfloat16)  # 167 tokens of gpt-oss
    logits[-1] = NAN
    assert first_nonfinite(model, lambda: model(logits)) == ""


def test_why_token_zero_on_every_small_row():
    values = (NAN, INF, 1.0, 0.0, -0.0, -INF)
    for row in itertools.chain.from_iterable(itertools.product(values, repeat=n) for n in (1, 2, 3)):
        logits = torch.tensor(row)
        if torch.argmax(logits) != 0:
            expected = None
        elif row[0] != row[0]:
            expected = "nan"
        else:
            expected = "chosen" if all(row[0] > other for other in row[1:]) else "tie"
        assert why_token_zero(logits) == expected, row
