"""Greedy generation and the key-value cache."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from gptoss_lab.decoding import Cache, generate, load_tokenizer
from gptoss_lab.model import Config, GptOss, ModelNotReady

SHAPE = {
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
}
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def tokenizer():
    """One token a byte, in the order of gpt-oss's alphabet: the bytes' printable stand-ins by code point."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture
def model():
    generator = torch.Generator().manual_seed(3)
    model = GptOss(Config(**SHAPE))
    for name, parameter in model.named_parameters():
        if parameter.dtype == torch.uint8:
            low, high = (120, 123) if name.endswith("_scales") else (0, 256)
            tensor = torch.randint(low, high, parameter.shape, generator=generator, dtype=torch.uint8)
        else:
            size = 1.0 if "embed" in name or "norm" in name else parameter.shape[-1] ** -0.5
            tensor = size * torch.randn(parameter.shape, generator=generator)
        model.copy_in(name, tensor)
    return model


def make_oracle(model: GptOss) -> GptOssForCausalLM:
    oracle = GptOssForCausalLM(GptOssConfig(**SHAPE)).eval()
    state = dict(model.state_dict())
    for name in [name for name in state if name.endswith("_blocks")]:
        blocks, scales = state.pop(name), state.pop(name.replace("_blocks", "_scales"))
        state[name.removesuffix("_blocks")] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    oracle.load_state_dict(state)
    return oracle


def test_greedy_tokens_are_those_of_transformers(model, tokenizer):
    ids = torch.tensor([tokenizer.encode(PROMPT).ids])
    oracle = make_oracle(model)
    expected = oracle.generate(ids, max_new_tokens=40, do_sample=False, attention_mask=torch.ones_like(ids))
    generation = generate(model, tokenizer, PROMPT, max_new_tokens=40)
    assert generation.tokens == expected[0, ids.shape[1] :].tolist()
    assert len(set(generation.tokens)) > 5  # a model that repeats one token would prove little
    assert generation.nonfinite == 0.0
    assert generation.text == tokenizer.decode(generation.tokens)


def test_the_cache_changes_nothing_but_the_work(model, tokenizer):
    ids = tokenizer.encode(PROMPT).ids
    generation = generate(model, tokenizer, PROMPT, max_new_tokens=12)
    for token in generation.tokens:
        assert int(model(ids)[-1].argmax()) == token
        ids.append(token)


def test_an_end_token_ends_the_answer(model, tokenizer):
    free = generate(model, tokenizer, PROMPT, max_new_tokens=12)
    end = next(token for token in free.tokens if token != free.tokens[0])
    model.config = dataclasses.replace(model.config, eos_token_id=(255, end))
    stopped = generate(model, tokenizer, PROMPT, max_new_tokens=12)
    assert stopped.tokens == free.tokens[: free.tokens.index(end) + 1]


def test_all_logits_nan_answer_with_bangs(model, tokenizer):
    model.copy_in("model.norm.weight", torch.full((32,), float("nan")))
    generation = generate(model, tokenizer, PROMPT)
    assert generation.text == "!" * 12
    assert generation.tokens == [0] * 12
    assert generation.nonfinite == 1.0


def test_all_logits_zero_answer_with_bangs_too_but_are_finite(model, tokenizer):
    model.copy_in("lm_head.weight", torch.zeros(256, 32))
    generation = generate(model, tokenizer, PROMPT)
    assert generation.text == "!" * 12
    assert generation.nonfinite == 0.0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_share_of_nonfinite_logits_is_exact(model, tokenizer, value):
    head = model.lm_head.weight.clone()
    head[[52, 60, 61]] = value
    model.copy_in("lm_head.weight", head)
    generation = generate(model, tokenizer, PROMPT, max_new_tokens=5)
    assert generation.nonfinite == 3 / 256
    if value != value:
        assert generation.tokens == [52] * 5  # argmax takes the first NaN for the largest value


def test_no_token_asked_for_is_no_token(model, tokenizer):
    generation = generate(model, tokenizer, PROMPT, max_new_tokens=0)
    assert (generation.text, generation.tokens, generation.nonfinite) == ("", [], 0.0)


def test_a_prompt_without_tokens_is_refused(model, tokenizer):
    with pytest.raises(ValueError, match="prompt '' has no token"):
        generate(model, tokenizer, "")


def test_a_model_that_is_not_filled_does_not_answer(tokenizer):
    with pytest.raises(ModelNotReady, match="never copied"):
        generate(GptOss(Config(**SHAPE)), tokenizer, PROMPT)


def test_experts_are_handed_on(model, tokenizer):
    calls = []

    def experts(layer, hidden, router_logits):
        calls.append(len(hidden))
        return layer(hidden, router_logits)

    generation = generate(model, tokenizer, PROMPT, max_new_tokens=3, experts=experts)
    assert generation == generate(model, tokenizer, PROMPT, max_new_tokens=3)
    assert calls == [len(PROMPT)] * 2 + [1] * 4


def test_the_cache_counts_and_keeps_rows():
    cache = Cache()
    assert cache.length == 0
    first, second = torch.ones(2, 1, 4), torch.zeros(1, 1, 4)
    cache.append(0, first, first)
    keys, values = cache.append(0, second, 2 + second)
    assert cache.length == 3
    assert keys[:, 0, 0].tolist() == [1, 1, 0]
    assert values[:, 0, 0].tolist() == [1, 1, 2]


def test_a_folder_s_tokenizer_is_read(tmp_path, tokenizer):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("! a").ids == tokenizer.encode("! a").ids
    assert load_tokenizer(tmp_path).decode([0]) == "!"
