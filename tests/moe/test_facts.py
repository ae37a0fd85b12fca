"""The tiny model answers the same, bit for bit, whichever way the routing is made."""

from __future__ import annotations

import csv

import pytest
import torch

from gptoss_lab.course import lab
from gptoss_lab.model import generate, load_model, load_tokenizer
from gptoss_lab.moe.experts import run_blocks
from gptoss_lab.moe.fused_routing import route
from gptoss_lab.moe.routing import rebuild, reuse, topk

WAYS = {
    "rebuild": lambda logits, k: rebuild(topk(logits, k), logits.shape[1]),
    "reuse": lambda logits, k: reuse(topk(logits, k), logits.shape[1]),
    "route": route,
}


def experts_by(way, device):
    """An expert layer whose routing is made by `way` on `device`; it notes every output."""
    outputs = []

    def experts(layer, hidden, router_logits):
        logits = router_logits.to(device, torch.bfloat16)  # [tokens, experts]
        outputs.append(run_blocks(layer, hidden, way(logits, layer.top_k)))
        return outputs[-1]

    return experts, outputs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
def test_every_fact_is_the_same_with_every_routing(device):
    model, tokenizer = load_model(lab.CAPITALS), load_tokenizer(lab.CAPITALS)
    with (lab.DATA / "facts.csv").open(encoding="utf-8") as file:
        facts = list(csv.DictReader(file))
    facts = facts if device == "cuda" else [fact for fact in facts if fact["country"] == "France"]
    assert facts
    for fact in facts:
        texts, outputs = {}, {}
        for name, way in WAYS.items():
            experts, outputs[name] = experts_by(way, device)
            prompt = f"The capital of {fact['country']} is"
            texts[name] = generate(model, tokenizer, prompt, max_new_tokens=2, experts=experts).text
        assert len(set(texts.values())) == 1, texts
        assert fact["capital"].startswith(texts["route"].strip().split(".")[0])
        assert len(outputs["rebuild"]) == len(outputs["reuse"]) == len(outputs["route"]) > 0
        for name in ("reuse", "route"):
            for one, other in zip(outputs["rebuild"], outputs[name], strict=True):
                assert torch.equal(one, other), name


def test_another_routing_gives_another_output(device):
    """The comparison can fail: a routing of other logits changes the layer's output."""
    layer = load_model(lab.CAPITALS).model.layers[0].mlp.experts
    hidden = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    logits = torch.randn(2, 32, generator=torch.Generator().manual_seed(1)).to(device, torch.bfloat16)
    one, other = (run_blocks(layer, hidden, reuse(topk(x, 4), 32)) for x in (logits, -logits))
    assert not torch.equal(one, other)
