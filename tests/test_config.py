"""Config against the files that transformers writes and against the real one's form."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from transformers import GptOssConfig

from gptoss_lab.config import Config, ConfigError, Yarn

# The fields of gpt-oss-20b's own config.json: the older form, with rope_scaling and two names for the top k.
REAL = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}


def write(folder, **changes):
    given = {name: value for name, value in (REAL | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(given))
    return folder


def test_the_defaults_are_gpt_oss_20b(tmp_path):
    read = Config.from_file(write(tmp_path))
    alternating = ("sliding_attention", "full_attention") * 12
    assert read == Config(layer_types=alternating, eos_token_id=(200002,))
    assert [read.window(i) for i in range(24)] == [Config().window(i) for i in range(24)] == [128, None] * 12


def test_what_transformers_writes_is_read(tmp_path):
    written = GptOssConfig(
        num_hidden_layers=3,
        hidden_size=64,
        intermediate_size=32,
        sliding_window=16,
        layer_types=["full_attention", "full_attention", "sliding_attention"],
        rms_norm_eps=1e-6,
        swiglu_limit=5.0,
        num_experts_per_tok=2,
        eos_token_id=[7, 9],
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "original_max_position_embeddings": 512,
            "truncate": True,
        },
    )
    written.save_pretrained(tmp_path)
    read = Config.from_file(tmp_path / "config.json")
    for name in Config.__dataclass_fields__.keys() - {
        "layer_types",
        "eos_token_id",
        "rope_scaling",
        "rope_theta",
    }:
        assert getattr(read, name) == getattr(written, name), name
    assert [read.window(i) for i in range(3)] == [None, None, 16]
    assert read.eos_token_id == (7, 9)
    assert read.rope_theta == 10000.0
    assert read.rope_scaling == Yarn(8.0, 16.0, 2.0, 512, True)


def test_transformers_reads_the_same_from_both_forms(tmp_path):
    older = Config.from_file(write(tmp_path))
    GptOssConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert "rope_parameters" in json.loads((tmp_path / "config.json").read_text())
    assert Config.from_file(tmp_path) == older


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_experts_per_tok": ..., "experts_per_token": 2}, {"num_experts_per_tok": 2}),
        ({"eos_token_id": None}, {"eos_token_id": ()}),
        ({"eos_token_id": 0}, {"eos_token_id": (0,)}),
        ({"layer_types": ...}, {"layer_types": None}),
        ({"rope_theta": 10000.0}, {"rope_theta": 10000.0}),
        ({"rope_scaling": {"rope_type": "yarn"}}, {"rope_scaling": Yarn(truncate=True)}),
        ({"rope_scaling": REAL["rope_scaling"] | {"mscale": None}}, {}),
    ],
)
def test_forms_of_one_field(tmp_path, changes, expected):
    read = Config.from_file(write(tmp_path, **changes))
    assert read == replace(Config.from_file(write(tmp_path)), **expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, r"model_type is 'llama'"),
        ({"model_type": ...}, r"model_type is None"),
        ({"attention_bias": False}, r"attention_bias is False"),
        ({"tie_word_embeddings": True}, r"tie_word_embeddings is True"),
        ({"hidden_act": "gelu"}, r"hidden_act is 'gelu'"),
        ({"swiglu_alpha": 1.0}, r"swiglu_alpha is 1\.0"),
        ({"hidden_size": ..., "head_dim": ...}, r"no value for hidden_size, head_dim"),
        ({"hidden_size": 2881}, r"hidden_size is 2881.*multiple of 32"),
        ({"intermediate_size": 0}, r"intermediate_size is 0.*multiple of 32"),
        ({"head_dim": 63}, r"head_dim is 63.*multiple of 2"),
        ({"num_key_value_heads": 7}, r"num_attention_heads is 64.*multiple of 7"),
        ({"num_experts_per_tok": 33}, r"num_experts_per_tok is 33.*1 to 32"),
        ({"num_experts_per_tok": 0}, r"num_experts_per_tok is 0.*1 to 32"),
        ({"sliding_window": 0}, r"sliding_window is 0"),
        ({"layer_types": ["full_attention"] * 23}, r"names 23 layers.*24"),
        ({"layer_types": ["chunked_attention"] * 24}, r"chunked_attention"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, r"rope_type is 'llama3'"),
        ({"rope_scaling": {"factor": 8.0}}, r"rope_type is None"),
        ({"rope_scaling": {"rope_type": "yarn", "mscale": 0.7}}, r"\['mscale'\]"),
    ],
)
def test_what_is_not_this_model_is_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Config.from_file(write(tmp_path, **changes))
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ("[1]", "model_type is 'list'"), ("\x00", "not JSON")]
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Config.from_file(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        Config.from_file(tmp_path)
