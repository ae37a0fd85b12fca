"""gpt-oss against transformers, in float32, whole and with each ingredient broken on purpose."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

import gptoss_lab.model as gptoss
from gptoss_lab.model import Cache, Config, Experts, GptOss, ModelNotReady, TensorRefused, load_model

SHAPE = {
    "num_hidden_layers": 4,
    "num_local_experts": 8,
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 4,
}
NARROW = Config(**SHAPE, sliding_window=16)
WIDE = Config(**SHAPE, sliding_window=128)
CLOSE = 1e-4
FAR = 0.5  # what a broken ingredient must at least change; logits have a deviation of about 1


def draw(name: str, parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A random tensor, of a size at which every ingredient matters and float32 still agrees to 1e-4."""
    if name.endswith("_blocks"):
        return torch.randint(0, 256, parameter.shape, generator=generator, dtype=torch.uint8)
    if name.endswith("_scales"):
        return torch.randint(121, 124, parameter.shape, generator=generator, dtype=torch.uint8)
    values = torch.randn(parameter.shape, generator=generator)
    if "norm" in name:
        return 1 + 0.2 * values
    if "sinks" in name or "embed_tokens" in name:
        return values
    if name.endswith("bias"):
        return 0.3 * values
    sharp = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
    return sharp * values * parameter.shape[-1] ** -0.5


def make_model(config: Config, dtype: torch.dtype = torch.float32) -> GptOss:
    generator = torch.Generator().manual_seed(0)
    model = GptOss(config, dtype)
    for name, parameter in model.named_parameters():
        model.copy_in(name, draw(name, parameter, generator))
    return model


def make_oracle(model: GptOss) -> GptOssForCausalLM:
    """transformers' model with the same weights; its experts' bytes are decoded by transformers."""
    oracle = GptOssForCausalLM(GptOssConfig(**SHAPE, sliding_window=model.config.sliding_window)).eval()
    state = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("_blocks"):
            scales = model.state_dict()[name.replace("_blocks", "_scales")]
            tensor = convert_moe_packed_tensors(tensor, scales, dtype=torch.float32)
            state[name.removesuffix("_blocks")] = tensor
        elif not name.endswith("_scales"):
            state[name] = tensor
    oracle.load_state_dict(state)
    return oracle


def remake(model: GptOss, config: Config) -> GptOss:
    """The same weights under another config."""
    other = GptOss(config)
    other.load_state_dict(model.state_dict())
    return other


def some_tokens(count: int) -> torch.Tensor:
    return torch.randint(0, SHAPE["vocab_size"], (count,), generator=torch.Generator().manual_seed(count))


def difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    assert logits.shape == expected.shape
    return (logits - expected).abs().max().item()


@pytest.fixture(scope="module", params=[NARROW, WIDE], ids=["window 16", "window 128"])
def pair(request):
    model = make_model(request.param)
    return model, make_oracle(model)


@pytest.fixture(scope="module")
def wide():
    model = make_model(WIDE)
    tokens = some_tokens(300)
    with torch.no_grad():
        return model, tokens, make_oracle(model)(tokens[None]).logits[0]


@pytest.mark.parametrize("count", [1, 12, 300])
@pytest.mark.parametrize("step", [None, 1, 7])
def test_logits_equal_those_of_transformers(pair, count, step):
    model, oracle = pair
    tokens = some_tokens(count)
    with torch.no_grad():
        expected = oracle(tokens[None]).logits[0]
    if step is None:
        logits = model(tokens)
    else:
        cache = Cache()
        logits = torch.cat([model(part, cache=cache) for part in tokens.split(step)])
        assert cache.length == count
    assert difference(logits, expected) < CLOSE


def changed(**fields):
    return lambda model, patch: remake(model, dataclasses.replace(model.config, **fields))


def stretched(**fields):
    yarn = dataclasses.replace(WIDE.rope_scaling, **fields)
    return changed(rope_scaling=yarn)


def patched(name: str, replacement):
    def break_it(model: GptOss, patch: pytest.MonkeyPatch) -> GptOss:
        patch.setattr(gptoss, name, replacement)
        return model

    return break_it


def weights_changed(part: str, change):
    def break_it(model: GptOss, patch: pytest.MonkeyPatch) -> GptOss:
        state = {name: change(t) if part in name else t for name, t in model.state_dict().items()}
        other = GptOss(model.config)
        other.load_state_dict(state)
        return other

    return break_it


def concatenated(gate_up, limit):
    gate, up = gate_up.chunk(2, dim=-1)
    return original_swiglu(torch.stack([gate, up], dim=-1).flatten(-2), limit)


def exchanged(gate_up, limit):
    return original_swiglu(gate_up.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), limit)


def plain_swiglu(alpha, add):
    def swiglu(gate_up, limit):
        gate, up = gate_up[..., 0::2].clamp(max=limit), gate_up[..., 1::2].clamp(-limit, limit)
        return (up + add) * gate * torch.sigmoid(alpha * gate)

    return swiglu


def pairs_beside_each_other(x, cos, sin):
    left, right = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack([left * cos - right * sin, right * cos + left * sin], dim=-1).flatten(-2)


def softmax_over_all(logits, top_k):
    return logits.softmax(-1).topk(top_k, dim=-1)


def swapped(blocks, scales, dtype):
    return original_dequantise(blocks >> 4 | blocks << 4, scales, dtype)


def not_concentrated(config, positions):
    cos, sin = original_rotation(config, positions)
    size = torch.sqrt(cos**2 + sin**2)
    return cos / size, sin / size


def heads_dealt_out(model, patch):
    """Query head i reads key-value head i % 2, not i // 4."""
    state = dict(model.state_dict())
    dealt = torch.arange(8).view(4, 2).T.flatten()
    for name in [n for n in state if "q_proj" in n]:
        state[name] = state[name].unflatten(0, (8, 16))[dealt].flatten(0, 1)
    for name in [n for n in state if "sinks" in n]:
        state[name] = state[name][dealt]
    for name in [n for n in state if "o_proj.weight" in n]:
        state[name] = state[name].unflatten(1, (8, 16))[:, dealt].flatten(1, 2)
    other = GptOss(model.config)
    other.load_state_dict(state)
    return other


original_swiglu, original_rotation = gptoss.swiglu, gptoss.rotation
original_dequantise, original_invisible = gptoss.dequantise, gptoss.invisible

BROKEN = {
    "no window": changed(layer_types=("full_attention",) * 4),
    "a window on every layer": changed(layer_types=("sliding_attention",) * 4),
    "the window on odd layers": changed(layer_types=("full_attention", "sliding_attention") * 2),
    "window 127": changed(sliding_window=127),
    "window 129": changed(sliding_window=129),
    "not causal": patched("invisible", lambda p, n, w: original_invisible(p, n, w) & False),
    "no sinks": weights_changed("sinks", lambda sinks: torch.full_like(sinks, -math.inf)),
    "sinks of zero": weights_changed("sinks", torch.zeros_like),
    "heads dealt out": heads_dealt_out,
    "YaRN factor 1": stretched(factor=1.0),
    "YaRN without concentration": patched("rotation", not_concentrated),
    "YaRN with a rounded ramp": stretched(truncate=True),
    "YaRN with another context": stretched(original_max_position_embeddings=131072),
    "rope_theta 10000": changed(rope_theta=10000.0),
    "rotated in neighbouring pairs": patched("rotate", pairs_beside_each_other),
    "not rotated": patched("rotate", lambda x, cos, sin: x),
    "nibbles swapped": patched("dequantise", swapped),
    "scales off by one": patched("dequantise", lambda b, s, dtype: original_dequantise(b, s + 1, dtype)),
    "gate and up concatenated": patched("swiglu", concatenated),
    "gate and up exchanged": patched("swiglu", exchanged),
    "up without the one": patched("swiglu", plain_swiglu(1.702, 0)),
    "silu instead of 1.702": patched("swiglu", plain_swiglu(1.0, 1)),
    "no softmax after top-k": patched("route", lambda logits, k: tuple(logits.topk(k, dim=-1))),
    "softmax before top-k": patched("route", softmax_over_all),
    "top-3": changed(num_experts_per_tok=3),
    "no expert bias": weights_changed("_proj_bias", torch.zeros_like),
    "no attention bias": weights_changed("_proj.bias", torch.zeros_like),
    "no router bias": weights_changed("router.bias", torch.zeros_like),
    "no weight in the norms": weights_changed("norm", torch.ones_like),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_ingredient_shows(wide, monkeypatch, how):
    model, tokens, expected = wide
    broken = BROKEN[how](model, monkeypatch)
    assert difference(broken(tokens), expected) > FAR


def test_an_unbroken_copy_does_not_show(wide, monkeypatch):
    model, tokens, expected = wide
    same = patched("swiglu", plain_swiglu(1.702, 1))(changed()(model, monkeypatch), monkeypatch)
    assert difference(same(tokens), expected) < CLOSE


def test_swiglu_clamps_as_transformers_does():
    oracle = GptOssExperts(GptOssConfig(**SHAPE))
    values = torch.linspace(-30, 30, 61)
    gate_up = torch.cartesian_prod(values, values)  # [3721, 2]
    expected = oracle._apply_gate(gate_up)
    torch.testing.assert_close(gptoss.swiglu(gate_up, oracle.limit), expected, rtol=1e-5, atol=0)
    # By hand: the gate stops at 7, up at 7 and -7, and a negative gate is not stopped.
    one = gptoss.swiglu(torch.tensor([[8.0, 9.0], [8.0, -9.0], [-8.0, 0.0]]), 7.0)
    top = 7 / (1 + math.exp(-1.702 * 7))
    low = -8 / (1 + math.exp(1.702 * 8))
    torch.testing.assert_close(one, torch.tensor([[8 * top], [-6 * top], [low]]), rtol=1e-5, atol=0)


def test_the_whole_model_clamps_large_activations(monkeypatch):
    model, tokens = make_model(NARROW), some_tokens(40)
    for name, parameter in model.named_parameters():
        if name.endswith("gate_up_proj_bias"):
            parameter.mul_(40)
    with torch.no_grad():
        expected = make_oracle(model)(tokens[None]).logits[0]
    assert difference(model(tokens), expected) < CLOSE
    unclamped = remake(model, dataclasses.replace(NARROW, swiglu_limit=math.inf))
    assert difference(unclamped(tokens), expected) > FAR


def test_bfloat16_stays_near_float32(wide):
    model, tokens, expected = wide
    narrow = GptOss(WIDE, torch.bfloat16)
    for name, tensor in model.state_dict().items():
        narrow.copy_in(name, tensor)
    logits = narrow(tokens[:12])
    assert logits.dtype == torch.bfloat16
    similarity = torch.cosine_similarity(logits.float(), expected[:12])
    assert similarity.min() > 0.99


def run_all_experts(layer: Experts, hidden: torch.Tensor, router_logits: torch.Tensor) -> torch.Tensor:
    """Every expert on every token, weighted by a share that is zero for those not chosen."""
    threshold = router_logits.sort(dim=-1, descending=True).values[:, layer.top_k - 1, None]
    shares = router_logits.masked_fill(router_logits < threshold, -math.inf).softmax(-1)
    every = torch.stack([layer.run_expert(e, hidden) for e in range(router_logits.shape[1])], dim=1)
    return (shares[..., None] * every).sum(1)


def test_experts_can_be_replaced(wide):
    model, tokens, expected = wide
    seen = []

    def experts(layer, hidden, router_logits):
        seen.append((layer, tuple(hidden.shape), tuple(router_logits.shape)))
        return run_all_experts(layer, hidden, router_logits)

    assert difference(model(tokens, experts=experts), expected) < CLOSE
    assert seen == [(layer.mlp.experts, (300, 64), (300, 8)) for layer in model.layers]
    without = model(tokens, experts=lambda layer, hidden, router_logits: torch.zeros_like(hidden))
    assert difference(without, expected) > FAR


def test_experts_of_another_shape_are_refused(wide):
    model, tokens, _ = wide
    with pytest.raises(ValueError, match=r"experts returned \[1, 64\].*\[300, 64\]"):
        model(tokens, experts=lambda layer, hidden, router_logits: hidden[:1])


def test_an_expert_is_dequantised_only_when_chosen(wide, monkeypatch):
    model, tokens, _ = wide
    asked = []

    def counting(blocks, scales, dtype):
        asked.append(blocks.data_ptr())
        return original_dequantise(blocks, scales, dtype)

    monkeypatch.setattr(gptoss, "dequantise", counting)
    model(tokens[:1])
    assert len(asked) == len(set(asked)) == 4 * 4 * 2  # layers, experts of the token, products


def test_the_form_of_the_tokens(wide):
    model, tokens, _ = wide
    expected = model(tokens[:5])
    assert torch.equal(model(tokens[None, :5]), expected)
    assert torch.equal(model(tokens[:5].tolist()), expected)
    assert model(tokens[:0]).shape == (0, 256)
    with pytest.raises(ValueError, match=r"\[2, 5\].*one sequence"):
        model(tokens[:10].view(2, 5))
    with pytest.raises(IndexError):
        model([256])


def test_names_are_those_of_the_checkpoint():
    with torch.device("meta"):
        oracle = GptOssForCausalLM(GptOssConfig(**SHAPE))
        model = GptOss(NARROW)
    expected = set()
    for name in oracle.state_dict():
        quantised = name.endswith(("gate_up_proj", "down_proj"))
        expected |= {f"{name}_blocks", f"{name}_scales"} if quantised else {name}
    assert set(model.state_dict()) == expected
    bytes_only = {name for name, tensor in model.state_dict().items() if tensor.dtype == torch.uint8}
    assert bytes_only == {name for name in expected if name.endswith(("_blocks", "_scales"))}
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("layers", "experts", "count", "total"),
    [(24, 32, 459, 13_761_264_768), (36, 128, 687, 65_248_815_744)],
    ids=["20b", "120b"],
)
def test_the_real_models_have_their_size(layers, experts, count, total):
    with torch.device("meta"):
        model = GptOss(Config(num_hidden_layers=layers, num_local_experts=experts), torch.bfloat16)
    tensors = model.state_dict().values()
    assert len(tensors) == count
    assert sum(tensor.nbytes for tensor in tensors) == total


def test_an_empty_model_refuses_to_run():
    model = GptOss(NARROW)
    with pytest.raises(ModelNotReady, match=r"79 of 79 .*model\.embed_tokens\.weight"):
        model([1])


def write_folder(folder, state: dict[str, torch.Tensor]) -> None:
    GptOssConfig(**SHAPE, sliding_window=16).save_pretrained(folder)
    names = list(state)
    parts = {"model-00001-of-00002.safetensors": names[:30], "model-00002-of-00002.safetensors": names[30:]}
    for file, members in parts.items():
        save_file({name: state[name] for name in members}, folder / file)
    index = {"weight_map": {name: file for file, members in parts.items() for name in members}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_load_model_reads_what_the_index_names(tmp_path):
    model, tokens = make_model(NARROW), some_tokens(12)
    state = dict(model.state_dict())
    write_folder(tmp_path, state)
    stale = {"lm_head.weight": torch.zeros_like(state["lm_head.weight"])}
    save_file(stale, tmp_path / "model-00003-of-00003.safetensors")
    loaded = load_model(tmp_path)
    assert loaded.config.window(0) == 16 and loaded.config.window(1) is None
    assert torch.equal(loaded(tokens), model(tokens))
    assert load_model(tmp_path, torch.bfloat16)(tokens).dtype == torch.bfloat16


def test_load_model_reads_a_single_file(tmp_path):
    model, tokens = make_model(NARROW), some_tokens(12)
    GptOssConfig(**SHAPE, sliding_window=16).save_pretrained(tmp_path)
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    assert torch.equal(load_model(tmp_path)(tokens), model(tokens))


def test_load_model_refuses_what_does_not_fit(tmp_path):
    state = dict(make_model(NARROW).state_dict())
    lost = state.pop("model.layers.2.self_attn.sinks")
    write_folder(tmp_path, state)
    with pytest.raises(ModelNotReady, match=r"1 of 79 .*model\.layers\.2\.self_attn\.sinks"):
        load_model(tmp_path)
    write_folder(tmp_path, state | {"model.layers.2.self_attn.sink": lost})
    with pytest.raises(TensorRefused, match=r"self_attn\.sink'.*did you mean .*self_attn\.sinks'"):
        load_model(tmp_path)
