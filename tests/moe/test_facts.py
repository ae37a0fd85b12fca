"""The tiny model answers the same, bit for bit, whichever way the routing is made."""

from __future__ import annotations

import csv

import torch

from gptoss_lab.course import lab
from gptoss_lab.model import generate, load_model, load_tokenizer
from gptoss_lab.moe.experts import run_blocks
from gptoss_lab.moe.routing import rebuild, reuse, topk


def experts_by(way, device):
    """An expert layer whose routing is made by `way` on `device`; it notes every output."""
    outputs = []

    def experts(layer, hidden, router_logits):
        logits = router_logits.to(device, torch.bfloat16)  # [tokens, experts]
        made = way(topk(logits, layer.top_k), logits.shape[1])
        outputs.append(run_blocks(layer, hidden, made))
        return outputs[-1]

    return experts, outputs


def test_every_fact_is_the_same_with_either_routing(device):
    model, tokenizer = load_model(lab.CAPITALS), load_tokenizer(lab.CAPITALS)
    with (lab.DATA / "facts.csv").open(encoding="utf-8") as file:
        facts = list(csv.DictReader(file))
    facts = facts if device == "cuda" else [fact for fact in facts if fact["country"] == "France"]
    assert facts
    for fact in facts:
        texts, outputs = {}, {}
        for way in (rebuild, reuse):
            experts, outputs[way] = experts_by(way, device)
            prompt = f"The capital of {fact['country']} is"
            texts[way] = generate(model, tokenizer, prompt, max_new_tokens=2, experts=experts).text
        assert texts[rebuild] == texts[reuse]
        assert fact["capital"].startswith(texts[reuse].strip().split(".")[0])
        assert len(outputs[rebuild]) == len(outputs[reuse]) > 0
        for one, other in zip(outputs[rebuild], outputs[reuse], strict=True):
            assert torch.equal(one, other)


def test_another_routing_gives_another_output(device):
    """The comparison can fail: a routing of other logits changes the layer's output."""
    layer = load_model(lab.CAPITALS).model.layers[0].mlp.experts
    hidden = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    logits = torch.randn(2, 32, generator=torch.Generator().manual_seed(1)).to(device, torch.bfloat16)
    one, other = (run_blocks(layer, hidden, reuse(topk(x, 4), 32)) for x in (logits, -logits))
    assert not torch.equal(one, other)
