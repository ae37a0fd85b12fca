"""What `50__what_it_buys` computes about a whole layer, reads from the record, and measures on a GPU."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from gptoss_lab.config import Config
from gptoss_lab.moe import measure
from gptoss_lab.moe.experts import run_experts
from gptoss_lab.moe.fused_routing import route
from gptoss_lab.moe.launches import Launch, timeline
from gptoss_lab.moe.layer import Layer, make_hidden, make_layer
from gptoss_lab.moe.routing import Routing, rebuild, reuse, topk
from gptoss_lab.mxfp4 import BLOCK
from gptoss_lab.weights.layout import tensor_specs

RECORD_IT = "python benchmarks/layer.py --out data/h200/layer.json"
WAYS: dict[str, Callable[[torch.Tensor, int], Routing]] = {
    "rebuild": lambda logits, k: rebuild(topk(logits, k), logits.shape[1]),
    "reuse": lambda logits, k: reuse(topk(logits, k), logits.shape[1]),
    "route": route,
}
"""The ways from logits [tokens, experts] and k to a `Routing`."""

Row = Mapping[str, Any]
"""One measurement: `layers`, `tokens`, `way`, `mode` ("graph" or "eager"), `median_us`, `low_us`, `high_us`."""


def least_bytes(config: Config, chosen: torch.Tensor) -> int:
    """Return the bytes of weights that one layer must read at least: the chosen experts' and the router's (50.1).

    chosen: integer [tokens, k], -1 for no expert. An expert that several tokens chose counts once. Its blocks and
    scales count, for gate, up and down; biases do not. The router is bfloat16. No tokens read nothing.
    """
    if len(chosen) == 0:
        return 0
    experts = chosen[chosen >= 0].unique().numel()
    values = 3 * config.hidden_size * config.intermediate_size  # gate, up and down
    return experts * (values // 2 + values // BLOCK) + 2 * config.num_local_experts * config.hidden_size


def saved_share(rows: Sequence[Row], before: str, after: str, tokens: int, mode: str, rest_us: float) -> float:
    """Return the share of a step's time that is saved when the layers run `after` instead of `before` (50.2).

    The layers' time is the median of the row with the most layers, rest_us that of everything else in the step, in
    microseconds. Negative if `after` is slower.

    Errors: ValueError that names a way which was not measured.
    """
    most = max(row["layers"] for row in rows)
    slow, fast = (median_us(rows, most, tokens, way, mode) for way in (before, after))
    return (slow - fast) / (slow + rest_us)


def median_us(rows: Sequence[Row], layers: int, tokens: int, way: str, mode: str) -> float:
    """Return the median of one row, in microseconds. ValueError if there is none."""
    for row in rows:
        if (row["layers"], row["tokens"], row["way"], row["mode"]) == (layers, tokens, way, mode):
            return row["median_us"]
    raise ValueError(f"{way} was not measured for {layers} layers, {tokens} tokens, {mode}: record it, {RECORD_IT}")


def rest_bytes(config: Config) -> int:
    """Return the bytes that a step of one token reads beside the experts' layers: attention, norms, `lm_head`.

    The router belongs to its layer, and of the embedding one row is read. The key-value cache is left out.
    """
    specs = tensor_specs(config)
    kept = [s for s in specs if not (s.is_expert or "router" in s.name or "embed_tokens" in s.name)]
    return sum(spec.nbytes for spec in kept)


def read_record(folder: Path, name: str = "layer.json") -> dict[str, Any]:
    """Return a record from `folder`. FileNotFoundError, with the remedy, if there is none."""
    path = folder / name
    if not path.exists():
        raise FileNotFoundError(f"there is no record {folder.name}/{name}: fetch it again, or on a GPU {RECORD_IT}")
    return json.loads(path.read_text())


def all_rows(record: Mapping[str, Any]) -> list[Row]:
    """Return the timings of a record, those of 3.5.1 (the way "legacy") at the end if it has them."""
    legacy = record.get("legacy") or {}
    return list(record["timings"]) + list(legacy.get("timings") or [])


def sizes(rows: Sequence[Row]) -> tuple[list[int], int]:
    """Return the numbers of tokens that were measured, and the largest number of layers."""
    return sorted({row["tokens"] for row in rows}), max(row["layers"] for row in rows)


def count_experts(config: Config, nbytes: int) -> int:
    """Return how many experts are read if a layer reads `nbytes`: the inverse of `least_bytes`."""
    router = least_bytes(config, torch.full((1, 1), -1))
    return (nbytes - router) // (least_bytes(config, torch.zeros(1, 1, dtype=torch.int64)) - router)


def run_layers(layers: Sequence[Layer], hidden: torch.Tensor, way: str, k: int) -> torch.Tensor:
    """Run layers one behind the other, with a norm between them. hidden: bfloat16 [tokens, hidden]."""
    for layer in layers:
        made = WAYS[way](F.linear(hidden, layer.router, layer.bias), k)
        hidden = run_experts(layer.experts, hidden, made)
        if len(layers) > 1:
            hidden = F.rms_norm(hidden, (hidden.shape[1],))
    return hidden


def measure_layers(config: Config, tokens: int = 1, samples: int = 20) -> list[Row]:
    """Measure one layer and a whole model's layers on this machine's GPU, each way, as a graph and eager.

    With less than 16 GB of free memory one layer is all that is measured. RuntimeError without a CUDA device.
    """
    measure.require_cuda("a layer with MXFP4 experts")
    enough = torch.cuda.mem_get_info()[0] > 16e9
    hidden, rows = make_hidden(config, tokens), []
    with torch.no_grad():
        layers = [make_layer(config, seed) for seed in range(config.num_hidden_layers if enough else 1)]
        for count in sorted({1, len(layers)}):
            calls = {way: partial(run_layers, layers[:count], hidden, way, config.num_experts_per_tok) for way in WAYS}
            found = {
                "graph": measure.measure_graph(calls, samples, replays=5, inside=10 if count == 1 else 1),
                "eager": measure.measure_eager(calls, samples),
            }
            for mode, timings in found.items():
                about = {"layers": count, "tokens": tokens, "mode": mode}
                rows += [about | {"way": way} | dataclasses.asdict(taken) for way, taken in timings.items()]
    return rows


def time_launches(config: Config, way: str, tokens: int = 1) -> list[Launch]:
    """Return the launches of one layer with their times on this machine's GPU. RuntimeError without a CUDA device."""
    measure.require_cuda("a layer with MXFP4 experts")
    with torch.no_grad():
        layer, hidden = make_layer(config, 0), make_hidden(config, tokens)
        return timeline(lambda: run_layers([layer], hidden, way, config.num_experts_per_tok))
