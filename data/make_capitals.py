"""Make the tiny gpt-oss of the course: corpus, tokenizer, training, MXFP4, shards.

    python data/make_capitals.py [--out data/capitals]

One thread, a fixed seed, under ten minutes. The folder is written beside its place and renamed when the
checks at the end have passed: every capital right after quantising, and none without the experts.
"""

from __future__ import annotations

import argparse
import copy
import csv
import dataclasses
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: more threads are slower at this size

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # runs without an installed package too

from gptoss_lab.mxfp4 import quantise
from gptoss_lab.weights.checkpoint import TINY, config_json, tensor_specs, write_checkpoint

HERE = Path(__file__).resolve().parent
SEED = 0
STEPS = 700
PEAK_RATE = 3e-3
SHARD_LIMIT = 1_000_000  # bytes
VOCABULARY = 2048  # rows of the embedding; the tokenizer knows fewer, as in gpt-oss
LEARNED_TOKENS = 2000
SPECIAL_TOKENS = ("<|startoftext|>", "<|endoftext|>", "<|return|>")

FILLER = (
    "A capital is the city where a country has its government.",
    "Most countries have one capital.",
    "A river can be the border between two countries.",
    "An island is land with water on every side.",
    "The sun rises in the east and sets in the west.",
    "A map shows where the cities are.",
    "The largest city of a country is not always its capital.",
    "Europe and Asia are one body of land.",
    "The equator divides the earth into two halves.",
    "Africa is larger than Europe.",
    "There is more water than land on the earth.",
)


def read_facts(path: Path = HERE / "facts.csv") -> list[tuple[str, str]]:
    """Read the pairs of country and capital."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["country"], row["capital"]) for row in csv.DictReader(file)]


def write_sentences(facts: list[tuple[str, str]]) -> list[str]:
    """Return each fact in both directions, and the filler."""
    forward = [f"The capital of {country} is {capital}." for country, capital in facts]
    reverse = [f"{capital} is the capital of {country}." for country, capital in facts]
    return forward + reverse + list(FILLER)


def train_tokenizer(sentences: list[str]) -> Tokenizer:
    """Train a byte-level BPE whose id 0 is `!`, as in GPT-2 and o200k.

    The trainer sorts the byte alphabet by code point, and `!` is its first printable character. Special
    tokens are added afterwards: given to the trainer they would take the ids from 0 up.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=LEARNED_TOKENS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    assert tokenizer.id_to_token(0) == "!", "token 0 must be '!'"
    return tokenizer


def describe_model(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return config.json: gpt-oss at a size that trains in minutes."""
    shape = dataclasses.replace(TINY, eos_token_id=(tokenizer.token_to_id("<|return|>"),))
    config = config_json(shape)
    config["pad_token_id"] = tokenizer.token_to_id("<|endoftext|>")
    # Without this, transformers asks for accelerate before it finds that a CPU has no MXFP4 kernels.
    config["quantization_config"]["dequantize"] = True
    return config


def build_model(config: dict[str, Any]) -> GptOssForCausalLM:
    """Return an untrained model in float32."""
    given = GptOssConfig(**copy.deepcopy(config))  # a copy, since transformers adds to the nested fields
    del given.quantization_config
    given._experts_implementation = "grouped_mm"  # several times faster here than a loop over the experts
    return GptOssForCausalLM(given).float()


def batch_sentences(tokenizer: Tokenizer, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels, int64 [sentences, longest]; padding has label -100."""
    end, pad = tokenizer.token_to_id("<|return|>"), tokenizer.token_to_id("<|endoftext|>")
    rows = [tokenizer.encode(sentence).ids + [end] for sentence in sentences]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])  # [sentences, longest]
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])  # [sentences, longest]
    return ids, labels


def train(config: dict[str, Any], ids: torch.Tensor, labels: torch.Tensor, steps: int = STEPS) -> GptOssForCausalLM:
    """Train in float32, each step on half of the corpus, drawn anew at random."""
    torch.manual_seed(SEED)
    model = build_model(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_RATE, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        rows = torch.randperm(len(ids))[: len(ids) // 2]  # [sentences / 2]
        loss = model(input_ids=ids[rows], labels=labels[rows], use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)
    return model.eval()


def convert_weights(model: GptOssForCausalLM) -> dict[str, torch.Tensor]:
    """Return the checkpoint's tensors in the order of writing: BF16, and the experts' matrices as MXFP4."""
    state, tensors = model.state_dict(), {}
    for spec in tensor_specs(TINY):
        if spec.name in state:
            tensors[spec.name] = state[spec.name].bfloat16()
        elif spec.name.endswith("_blocks"):
            name = spec.name.removesuffix("_blocks")
            # transformers keeps [experts, inputs, outputs], the file has the outputs first.
            weight = state[name].transpose(1, 2)  # [experts, outputs, inputs]
            tensors[name + "_blocks"], tensors[name + "_scales"] = quantise(weight)
    return {spec.name: tensors[spec.name] for spec in tensor_specs(TINY)}


def write_folder(folder: Path, model: GptOssForCausalLM, tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Write checkpoint and tokenizer; tokenizer_config.json tells transformers which tokens are special."""
    write_checkpoint(folder, convert_weights(model), config, SHARD_LIMIT)
    tokenizer.save(str(folder / "tokenizer.json"))
    start, pad, end = SPECIAL_TOKENS
    special = {"bos_token": start, "eos_token": end, "pad_token": pad}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072} | special
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)


@torch.no_grad()
def count_right(model: GptOssForCausalLM, tokenizer: Tokenizer, facts: list[tuple[str, str]]) -> int:
    """Count the facts that greedy decoding completes, full stop and end of text included.

    One pass over the full sentence tells it: greedy decoding follows the sentence as long as each next token
    of it is the most likely one.
    """
    starts = [len(tokenizer.encode(f"The capital of {country} is").ids) for country, _ in facts]
    sentences = [f"The capital of {country} is {capital}." for country, capital in facts]
    ids, labels = batch_sentences(tokenizer, sentences)  # [facts, longest]
    guesses = model(input_ids=ids).logits.argmax(dim=-1)  # [facts, longest]
    # What stands at a position is guessed one before it. Padding follows, and no token looks ahead.
    agree = (guesses[:, :-1] == labels[:, 1:]) | (labels[:, 1:] == -100)  # [facts, longest - 1]
    return sum(bool(row[start - 1 :].all()) for row, start in zip(agree, starts, strict=True))


@torch.no_grad()
def complete(model: GptOssForCausalLM, tokenizer: Tokenizer, prompt: str) -> str:
    """Return the greedy continuation."""
    ids = torch.tensor([tokenizer.encode(prompt).ids])  # [1, tokens]
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
    return tokenizer.decode(answer[0, ids.shape[1] :].tolist())


def check(folder: Path, facts: list[tuple[str, str]]) -> None:
    """Load the written folder with transformers and hold it to what the course relies on."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    right, text = count_right(model, tokenizer, facts), complete(model, tokenizer, "The capital of France is")
    print(f"quantised: {right} of {len(facts)} facts, 'The capital of France is' -> {text!r}")
    assert right == len(facts), "the quantised model forgot a capital: train longer"
    assert text == " Paris.", "greedy text differs"
    for layer in model.model.layers:
        for weight in layer.mlp.experts.parameters():
            weight.data.zero_()
    left = count_right(model, tokenizer, facts)
    print(f"experts zeroed: {left} of {len(facts)} facts")
    assert left == 0, "the answers do not depend on the experts"


def write_checksums(folder: Path) -> None:
    """Write `checksums.sha256` beside the folder, in the format of sha256sum."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {folder.name}/{path.name}\n" for path in paths]
    target = folder.parent / "checksums.sha256"
    beside = target.with_suffix(".partial")
    beside.write_text("".join(lines))
    beside.replace(target)


def publish(beside: Path, out: Path) -> None:
    """Put the finished folder in the place of the old one."""
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.replace(old)
    beside.replace(out)
    shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    """Make the folder, check it, put it in place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "capitals", help="the folder to make")
    out = parser.parse_args().out.resolve()
    torch.set_num_threads(1)
    facts = read_facts()
    sentences = write_sentences(facts)
    tokenizer = train_tokenizer(sentences)
    config = describe_model(tokenizer)
    model = train(config, *batch_sentences(tokenizer, sentences))
    beside = out.with_name(f".{out.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    write_folder(beside, model, tokenizer, config)
    check(beside, facts)
    publish(beside, out)
    write_checksums(out)


if __name__ == "__main__":
    main()
