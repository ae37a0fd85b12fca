"""The tiny gpt-oss in data/capitals: complete, right, and wrong in the way that the course shows."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from runai_model_streamer import SafetensorsStreamer
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from gptoss_lab.config import Config
from gptoss_lab.model import GptOss, generate
from gptoss_lab.weights.checkpoint import TINY, file_order, read_checkpoint, shard, tensor_specs

DATA = Path(__file__).parents[2] / "data"
FOLDER = DATA / "capitals"
PROMPT = "The capital of France is"
TOTAL = 2_661_120
LARGEST = 262_144
LIMITS_BELOW_THE_TOTAL = [0, *(LARGEST + step * (TOTAL - 1 - LARGEST) // 38 for step in range(39))]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """data/make_capitals.py as a module."""
    spec = importlib.util.spec_from_file_location("make_capitals", DATA / "make_capitals.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def stored() -> dict[str, torch.Tensor]:
    """The tensors as safetensors reads them."""
    return {name: t for file in read_checkpoint(FOLDER).files for name, t in load_file(file).items()}


def fill(tensors: dict[str, torch.Tensor]) -> GptOss:
    """A model with these tensors."""
    model = GptOss(Config.from_file(FOLDER))
    for name, tensor in tensors.items():
        model.copy_in(name, tensor)
    return model


def drain_stream(limit: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Keep every view that the real streamer yields, and copy only when the stream has ended."""
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", str(limit))
    with SafetensorsStreamer() as streamer:
        streamer.stream_files([str(file) for file in read_checkpoint(FOLDER).files])
        kept = list(streamer.get_tensors())
        return {name: tensor.clone() for name, tensor in kept}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


# The files


def test_checksums():
    lines = (DATA / "checksums.sha256").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert listed.keys() == {f"capitals/{path.name}" for path in FOLDER.iterdir()}
    for name, digest in listed.items():
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest


def test_layout_is_gpt_oss():
    checkpoint = read_checkpoint(FOLDER)
    specs = tensor_specs(TINY)
    shards = shard(specs, 1_000_000)
    assert len(specs) == len(checkpoint.tensors) == 155
    assert len(shards) == len(checkpoint.files) == 3
    assert checkpoint.total_bytes == TOTAL
    assert [tensor.spec for tensor in checkpoint.tensors.values()] == [
        spec for inside in shards for spec in file_order(inside)
    ]
    largest = max(specs, key=lambda spec: spec.nbytes)
    assert (largest.name, largest.nbytes) == ("model.embed_tokens.weight", LARGEST)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 4_000_000


def test_experts_and_dense_weights_are_used_ones(stored):
    for name, tensor in stored.items():
        if name.endswith("_scales"):
            assert tensor.min() > 0, name  # 0 would be a block of zeros
            assert tensor.max() < 140, name
        elif not name.endswith("_blocks"):
            assert tensor.isfinite().all(), name
            assert tensor.count_nonzero() > 0, name


# The tokenizer


def test_token_zero_is_the_exclamation_mark_and_the_alphabet_is_sorted(tokenizer):
    assert tokenizer.id_to_token(0) == "!"
    alphabet = [tokenizer.id_to_token(i) for i in range(256)]
    assert alphabet == sorted(alphabet)
    assert all(len(token) == 1 for token in alphabet)
    assert len(tokenizer.id_to_token(256)) == 2


def test_special_tokens_come_after_the_merges(tokenizer):
    size = tokenizer.get_vocab_size()
    special = ["<|startoftext|>", "<|endoftext|>", "<|return|>"]
    assert [tokenizer.token_to_id(token) for token in special] == [size - 3, size - 2, size - 1]
    assert size < TINY.vocab_size  # rows of padding, as in gpt-oss
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["eos_token_id"] == tokenizer.token_to_id("<|return|>")
    assert config["pad_token_id"] == tokenizer.token_to_id("<|endoftext|>")


def test_transformers_loads_the_tokenizer(tokenizer):
    theirs = AutoTokenizer.from_pretrained(FOLDER)
    for text in (PROMPT, " Paris.", "São Tomé, 北京, 🙂!\n  two spaces"):
        assert theirs(text).input_ids == tokenizer.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert theirs.eos_token_id == tokenizer.token_to_id("<|return|>")


# The script


def test_corpus_has_each_fact_in_both_directions(maker):
    facts = maker.read_facts()
    sentences = maker.write_sentences(facts)
    assert len(facts) == len({country for country, _ in facts}) == len({city for _, city in facts}) == 167
    assert len(sentences) == len(set(sentences)) == 345
    assert {"The capital of France is Paris.", "Paris is the capital of France."} <= set(sentences)


def test_script_gives_this_tokenizer_and_this_config(maker, tokenizer):
    again = maker.train_tokenizer(maker.write_sentences(maker.read_facts()))
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.to_str(pretty=True) == (FOLDER / "tokenizer.json").read_text(encoding="utf-8")
    assert maker.describe_model(again) == json.loads((FOLDER / "config.json").read_text())


def test_script_writes_a_folder_that_its_check_refuses_when_untrained(maker, tokenizer, tmp_path):
    """Everything but the training, end to end: the written folder loads, and its answers are wrong."""
    torch.manual_seed(0)
    config = maker.describe_model(tokenizer)
    maker.write_folder(tmp_path / "new", maker.build_model(config), tokenizer, config)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in FOLDER.iterdir()}
    with pytest.raises(AssertionError, match="forgot a capital"):
        maker.check(tmp_path / "new", maker.read_facts())


def test_publish_replaces_the_old_folder_and_checksums_follow(maker, tmp_path):
    for name, text in (("old", "old"), ("new", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
    maker.publish(tmp_path / "new", tmp_path / "old")
    maker.write_checksums(tmp_path / "old")
    assert {path.name for path in tmp_path.iterdir()} == {"old", "checksums.sha256"}
    assert (tmp_path / "old" / "file").read_text() == "new"
    digest = hashlib.sha256(b"new").hexdigest()
    assert (tmp_path / "checksums.sha256").read_text() == f"{digest}  old/file\n"


# Healthy answers


def test_transformers_knows_every_capital_and_none_without_the_experts(maker, tokenizer):
    facts = maker.read_facts()
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    assert maker.count_right(model, tokenizer, facts) == 167
    assert maker.complete(model, tokenizer, PROMPT) == " Paris."
    for layer in model.model.layers:
        for weight in layer.mlp.experts.parameters():
            weight.data.zero_()
    assert maker.count_right(model, tokenizer, facts) == 0


def test_the_courses_model_answers_paris_in_float32_and_bfloat16(stored, tokenizer):
    for dtype in (torch.float32, torch.bfloat16):
        model = GptOss(Config.from_file(FOLDER), dtype)
        for name, tensor in stored.items():
            model.copy_in(name, tensor)
        answer = generate(model, tokenizer, PROMPT)
        assert (answer.text, answer.nonfinite) == (" Paris.", 0.0)


# Answers from overwritten weights


@pytest.mark.parametrize(("limit", "overwritten"), [(-1, 0), (TOTAL, 0), (0, 148), (LARGEST, 148), (TOTAL - 1, 3)])
def test_overwritten_tensors_by_limit(stored, monkeypatch, limit, overwritten):
    kept = drain_stream(limit, monkeypatch)
    assert kept.keys() == stored.keys()
    assert sum(raw(kept[name]) != raw(stored[name]) for name in stored) == overwritten


@pytest.mark.parametrize("limit", LIMITS_BELOW_THE_TOTAL)
def test_every_limit_below_the_total_gives_bangs_and_nothing_but_nan(tokenizer, monkeypatch, limit):
    model = fill(drain_stream(limit, monkeypatch))
    with torch.no_grad():
        logits = model(torch.tensor(tokenizer.encode(PROMPT).ids))  # [tokens, vocab]
    assert logits.isnan().all()
    answer = generate(model, tokenizer, PROMPT, max_new_tokens=12)
    assert (answer.text, answer.nonfinite) == ("!" * 12, 1.0)


CHILD = """
import hashlib, sys
from pathlib import Path
import torch
from runai_model_streamer import SafetensorsStreamer
from gptoss_lab.config import Config
from gptoss_lab.model import GptOss, generate, load_tokenizer

folder = Path(sys.argv[1])
with SafetensorsStreamer() as streamer:
    streamer.stream_files(sorted(str(file) for file in folder.glob("*.safetensors")))
    kept = dict(list(streamer.get_tensors()))
    model, digest = GptOss(Config.from_file(folder)), hashlib.sha256()
    for name in sorted(kept):
        model.copy_in(name, kept[name])
        digest.update(kept[name].reshape(-1).view(torch.uint8).numpy().tobytes())
print("RESULT", digest.hexdigest(), generate(model, load_tokenizer(folder), sys.argv[2]).text)
"""


@pytest.mark.slow
def test_twenty_processes_get_the_same_wrong_bytes_and_the_same_text(monkeypatch):
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(DATA.parent))
    results = set()
    for _ in range(20):
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(FOLDER), PROMPT], capture_output=True, text=True, timeout=300
        )
        assert child.returncode == 0, child.stderr
        results.add(next(line for line in child.stdout.splitlines() if line.startswith("RESULT")))
    assert len(results) == 1
    assert results.pop().endswith(" " + "!" * 12)
