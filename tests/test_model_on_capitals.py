"""The tiny trained checkpoint in data/capitals, read here and by transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GptOssForCausalLM

from gptoss_lab.model import Cache, generate, load_model, load_tokenizer

FOLDER = Path(__file__).parents[1] / "data" / "capitals"
PROMPTS = [
    "The capital of France is",
    "The capital of Portugal is",
    "The capital of Japan is",
    "Oslo is the capital of",
    "The capital of",
    "A sentence that no one trained on! 12345",
]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(FOLDER)


@pytest.fixture(scope="module")
def model():
    return load_model(FOLDER)


@pytest.fixture(scope="module")
def oracle():
    return GptOssForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def test_the_capital_of_france_is_paris(model, tokenizer):
    generation = generate(model, tokenizer, PROMPTS[0])
    assert generation.text == " Paris."
    assert generation.nonfinite == 0.0


def test_bfloat16_knows_it_too(tokenizer):
    assert generate(load_model(FOLDER, torch.bfloat16), tokenizer, PROMPTS[0]).text == " Paris."


@pytest.mark.parametrize("prompt", PROMPTS)
def test_answers_are_those_of_transformers(model, oracle, tokenizer, prompt):
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    expected = oracle.generate(ids, max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(ids))
    assert generate(model, tokenizer, prompt).tokens == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("step", [300, 50])
def test_logits_are_those_of_transformers(model, oracle, step):
    tokens = torch.randint(0, 1700, (300,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = oracle(tokens[None]).logits[0]
    cache = Cache()
    logits = torch.cat([model(part, cache=cache) for part in tokens.split(step)])
    assert (logits - expected).abs().max() < 1e-4


def test_the_experts_hold_the_facts(model, tokenizer):
    answer = generate(model, tokenizer, PROMPTS[0], experts=lambda layer, hidden, logits: torch.zeros_like(hidden))
    assert "Paris" not in answer.text
