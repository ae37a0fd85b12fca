"""The checkers of lesson 50 tell wrong answers apart, and its functions agree with the checkpoint and the record."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gptoss_lab.course import figures, lab
from gptoss_lab.course.lessons import draw_42, draw_50, layer_50
from gptoss_lab.course.lessons.lesson_50 import least_bytes, saved_share
from gptoss_lab.moe.launches import launches
from gptoss_lab.weights.layout import GPT_OSS_20B, GPT_OSS_120B, TINY, tensor_specs


def counted(
    matrices=3,
    value=1 / 2,
    scale=1 / 32,
    router=2,
    bias=0,
    rows=lambda c: c.num_local_experts,
    size=lambda c: c.hidden_size * c.intermediate_size,
    count=lambda chosen, c: len({e for e in chosen.flatten().tolist() if e >= 0}),
    make=round,
):
    """An answer put together from its parts, each of which can be wrong."""

    def answer(config, chosen):
        if len(chosen) == 0:
            return 0
        expert = matrices * size(config) * (value + scale)
        expert += bias * (2 * config.intermediate_size + config.hidden_size)
        return make(count(chosen, config) * expert + router * rows(config) * config.hidden_size)

    return answer


def fails_without_tokens(config, chosen):
    if len(chosen) == 0:
        raise IndexError("no tokens")
    return layer_50.least_bytes(config, chosen)


def router_without_tokens(config, chosen):
    return layer_50.least_bytes(config, chosen if len(chosen) else torch.full((1, 1), -1))


def nothing_without_experts(config, chosen):
    return layer_50.least_bytes(config, chosen) if (chosen >= 0).any() else 0


def replaces_minus_one(config, chosen):
    result = layer_50.least_bytes(config, chosen)
    chosen[chosen < 0] = 0
    return result


def views_the_ids(config, chosen):
    return layer_50.least_bytes(config, chosen.view(-1, 1)) if len(chosen) else 0


LEAST_BYTES = {
    "a constant": (lambda config, chosen: 53_061_120, "It returned 53061120 every time"),
    "every expert there is": (counted(count=lambda chosen, c: c.num_local_experts), "case 'a tiny layer, one expert'"),
    "every pick": (
        counted(count=lambda chosen, c: int((chosen >= 0).sum())),
        "case 'two tokens choose the same'",
    ),
    "distinct in each token": (
        counted(count=lambda chosen, c: sum(len({e for e in row if e >= 0}) for row in chosen.tolist())),
        "An expert that two tokens chose is read once.",
    ),
    "only the first token": (
        counted(count=lambda chosen, c: int((chosen[0] >= 0).sum())),
        "case 'two tokens, eight experts'",
    ),
    "expert 0 is none": (
        counted(count=lambda chosen, c: chosen[chosen > 0].unique().numel()),
        "Expert 0 is an expert.",
    ),
    "-1 is an expert": (counted(count=lambda chosen, c: chosen.unique().numel()), "-1 says no expert"),
    "at most k": (
        counted(count=lambda chosen, c: min(c.num_experts_per_tok, chosen[chosen >= 0].unique().numel())),
        "case 'two tokens, eight experts'",
    ),
    "no scales": (counted(scale=0), "32 of them share a scale of one byte"),
    "a byte for a value": (counted(value=1), "A value has half a byte"),
    "BF16 experts": (counted(value=2, scale=0), "A value has half a byte"),
    "gate_up as one matrix": (counted(matrices=2), "gate, up and down"),
    "with biases": (counted(bias=2), "No biases."),
    "no router": (counted(router=0), "Then the router, two bytes a value."),
    "a router in float32": (counted(router=4), "Then the router, two bytes a value."),
    "the chosen experts' router": (
        lambda config, chosen: counted(rows=lambda c: chosen[chosen >= 0].unique().numel())(config, chosen),
        "case 'a tiny layer, one expert'",
    ),
    "32 experts": (counted(rows=lambda c: 32), "The router has a row for each expert that there is"),
    "hidden twice": (counted(size=lambda c: c.hidden_size**2), "case 'intermediate is not hidden'"),
    "megabytes": (counted(make=lambda nbytes: nbytes / 1e6), "expected the int"),
    "a float": (counted(make=float), "expected the int"),
    "a tensor": (counted(make=lambda nbytes: torch.tensor(round(nbytes))), "expected the int"),
    "the router without tokens": (router_without_tokens, "Without a token nothing is computed"),
    "fails without tokens": (fails_without_tokens, "case 'no tokens': `least_bytes` raised IndexError"),
    "nothing without experts": (nothing_without_experts, "case 'no token has an expert'"),
    "replaces -1": (replaces_minus_one, "the function changed its input"),
    "a view of the ids": (views_the_ids, "`reshape` or `flatten`, not `view`"),
    "forgets to return": (lambda config, chosen: None, "`return`"),
}


def shared(
    layers=max,
    pick=lambda row: row["median_us"],
    fits=lambda row, tokens, mode: (row["tokens"], row["mode"]) == (tokens, mode),
    share=lambda slow, fast, rest: (slow - fast) / (slow + rest),
    ways=lambda before, after: (before, after),
):
    """An answer put together from its parts, each of which can be wrong."""

    def answer(rows, before, after, tokens, mode, rest_us):
        most = layers(row["layers"] for row in rows)
        found = {row["way"]: pick(row) for row in rows if row["layers"] == most and fits(row, tokens, mode)}
        slow, fast = ways(before, after)
        for way in (slow, fast):
            if way not in found:
                raise ValueError(f"{way} was not measured")
        return share(found[slow], found[fast], rest_us)

    return answer


def first_rows(rows, before, after, tokens, mode, rest_us):
    slow, fast = (next(row["median_us"] for row in rows if row["way"] == way) for way in (before, after))
    return (slow - fast) / (slow + rest_us)


def most_layers_of_each_way(rows, before, after, tokens, mode, rest_us):
    fitting = [row for row in rows if (row["tokens"], row["mode"]) == (tokens, mode)]
    medians = []
    for way in (before, after):
        found = [row for row in fitting if row["way"] == way]
        if not found:
            raise ValueError(f"{way} was not measured")
        medians.append(max(found, key=lambda row: row["layers"])["median_us"])
    return (medians[0] - medians[1]) / (medians[0] + rest_us)


def most_layers_of_what_fits(rows, before, after, tokens, mode, rest_us):
    return layer_50.saved_share(
        [row for row in rows if (row["tokens"], row["mode"]) == (tokens, mode)], before, after, tokens, mode, rest_us
    )


def looks_for_one_way_only(rows, before, after, tokens, mode, rest_us):
    most = max(row["layers"] for row in rows)
    fitting = [row for row in rows if (row["layers"], row["tokens"], row["mode"]) == (most, tokens, mode)]
    found = {row["way"]: row["median_us"] for row in fitting}
    if after not in found:
        raise ValueError(f"{after} was not measured")
    return (found[before] - found[after]) / (found[before] + rest_us)


def zero_for_a_missing_way(rows, *question):
    try:
        return layer_50.saved_share(rows, *question)
    except ValueError:
        return 0.0


def key_error_for_a_missing_way(rows, *question):
    try:
        return layer_50.saved_share(rows, *question)
    except ValueError:
        raise KeyError(question[1]) from None


def nameless_error(rows, *question):
    try:
        return layer_50.saved_share(rows, *question)
    except ValueError:
        raise ValueError("not measured") from None


def sorts_the_rows(rows, *question):
    result = layer_50.saved_share(rows, *question)
    rows.sort(key=lambda row: (-row["median_us"], row["way"]))
    rows.reverse()
    return result


WHOLE, HALF = "case 'the layers are the whole step'", "case 'half of the step is something else'"
SAVED_SHARE = {
    "a constant": (lambda *question: 0.25, "It returned 0.25 every time"),
    "of the layers alone": (shared(share=lambda s, f, r: (s - f) / s), HALF),
    "of the time after": (
        shared(share=lambda s, f, r: (s - f) / (f + r)),
        "What is saved, divided by the time before.",
    ),
    "of the rest": (shared(share=lambda s, f, r: (s - f) / (r or s)), HALF),
    "the speed-up": (shared(share=lambda s, f, r: (s + r) / (f + r)), WHOLE),
    "what is left": (shared(share=lambda s, f, r: (f + r) / (s + r)), WHOLE),
    "per cent": (shared(share=lambda s, f, r: 100 * (s - f) / (s + r)), "the share is 25, expected 0.25"),
    "the other sign": (shared(share=lambda s, f, r: (f - s) / (s + r)), "the share is -0.25, expected 0.25"),
    "never negative": (shared(share=lambda s, f, r: max(0.0, (s - f) / (s + r))), "A slower way has a negative share"),
    "without a sign": (shared(share=lambda s, f, r: abs(s - f) / (s + r)), "A slower way has a negative share"),
    "one layer": (shared(layers=min), "Take the row with the most layers"),
    "24 layers": (shared(layers=lambda layers: 24), "The number of layers is in the rows."),
    "the first rows": (first_rows, "case 'one layer and a model's layers'"),
    "graph only": (shared(fits=lambda row, t, m: (row["tokens"], row["mode"]) == (t, "graph")), "of the mode"),
    "any mode": (shared(fits=lambda row, t, m: row["tokens"] == t), "of the mode"),
    "one token only": (shared(fits=lambda row, t, m: (row["tokens"], row["mode"]) == (1, m)), "number of tokens"),
    "any tokens": (shared(fits=lambda row, t, m: row["mode"] == m), "number of tokens"),
    "rebuild and reuse always": (shared(ways=lambda b, a: ("rebuild", "reuse")), "`before` and `after` name the ways."),
    "the fastest sample": (shared(pick=lambda row: row["low_us"]), HALF),
    "rest in milliseconds": (shared(share=lambda s, f, r: (s - f) / (s + r / 1000)), HALF),
    "a tensor": (shared(share=lambda s, f, r: torch.tensor((s - f) / (s + r))), "a tensor of float32"),
    "four places": (shared(share=lambda s, f, r: round((s - f) / (s + r), 4)), "do not round it"),
    "the most layers of each way": (most_layers_of_each_way, "case 'a way that was measured for one layer only'"),
    "the most layers of what fits": (most_layers_of_what_fits, "Find the most layers first, of all rows"),
    "looks for one way only": (looks_for_one_way_only, "Raise ValueError for either way"),
    "0 for a missing way": (zero_for_a_missing_way, "expected a ValueError"),
    "KeyError": (key_error_for_a_missing_way, "Raise ValueError with the name of the way"),
    "an error without the name": (nameless_error, "the ValueError does not mention"),
    "sorts the rows": (sorts_the_rows, "the function changed its input: `rows`"),
}
WRONG = {least_bytes: LEAST_BYTES, saved_share: SAVED_SHARE}


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (least_bytes, layer_50.least_bytes),
        (saved_share, layer_50.saved_share),
        (least_bytes, counted()),
        (saved_share, shared()),
    ],
    ids=["least_bytes", "saved_share", "counted", "shared"],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, verdict


@pytest.mark.parametrize("config", [GPT_OSS_20B, GPT_OSS_120B, TINY, replace(TINY, intermediate_size=320)])
def test_layers_rest_biases_and_embedding_make_a_checkpoint(config):
    specs = tensor_specs(config)
    everyone = torch.arange(config.num_local_experts)[None]
    left_out = [s.nbytes for s in specs if "embed_tokens" in s.name or ("mlp" in s.name and s.name.endswith("bias"))]
    counted_bytes = config.num_hidden_layers * layer_50.least_bytes(config, everyone) + layer_50.rest_bytes(config)
    assert counted_bytes + sum(left_out) == sum(spec.nbytes for spec in specs)


@pytest.mark.parametrize("experts", [0, 1, 4, 31, 32])
def test_experts_are_counted_back_from_bytes(experts):
    chosen = torch.arange(experts)[:, None] if experts else torch.full((1, 4), -1)
    assert layer_50.count_experts(GPT_OSS_20B, layer_50.least_bytes(GPT_OSS_20B, chosen)) == experts


def test_a_missing_record_is_named_with_the_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"layer\.json.*benchmarks/layer\.py"):
        layer_50.read_record(tmp_path)


@pytest.fixture
def record():
    return layer_50.read_record(lab.DATA / "h200")


def test_the_record_has_the_bytes_that_the_lesson_counts(record):
    tokens, layers = layer_50.sizes(layer_50.all_rows(record))
    assert [int(n) for n in record["bytes"]] == tokens and layers == GPT_OSS_20B.num_hidden_layers
    for n, nbytes in zip(tokens, record["bytes"].values(), strict=True):
        experts = layer_50.count_experts(GPT_OSS_20B, nbytes)
        assert layer_50.least_bytes(GPT_OSS_20B, torch.arange(experts)[None]) == nbytes
        assert GPT_OSS_20B.num_experts_per_tok <= experts <= min(4 * n, GPT_OSS_20B.num_local_experts)


def test_the_record_has_the_routings_launches_and_the_same_rest_for_each_way(record):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits = torch.randn((1, 32), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).to(device)
    rests = set()
    for way, make in layer_50.WAYS.items():
        routing, layer = launches(lambda make=make: make(logits, 4)), record["check"]["launches"][way]
        first = layer.index(routing[0])
        assert layer[first : first + len(routing)] == routing
        rests.add((*layer[:first], *layer[first + len(routing) :]))
    assert len(rests) == 1


def test_no_layer_of_the_record_is_below_its_floor(record):
    """At one token every layer reads the experts of one token, and the model's layers do not fit into a cache."""
    rows = layer_50.all_rows(record)
    layers = layer_50.sizes(rows)[1]
    times = [row["median_us"] / layers for row in rows if (row["layers"], row["tokens"]) == (layers, 1)]
    assert len(times) >= 6 and min(times) > record["bytes"]["1"] / 4.8e6


def test_the_record_says_what_the_prose_says(record):
    rows, layers = layer_50.all_rows(record), GPT_OSS_20B.num_hidden_layers
    alone = draw_42.read_medians(layer_50.read_record(lab.DATA / "h200", "one_launch.json"))
    us = {(w, m): layer_50.median_us(rows, layers, 1, w, m) for w in layer_50.WAYS for m in ("graph", "eager")}
    assert us["rebuild", "eager"] - us["reuse", "eager"] > us["rebuild", "graph"]  # more than all layers in a graph
    eager = layer_50.median_us(rows, 1, 1, "rebuild", "eager")
    assert eager - alone[1, 32, "rebuild", "eager"] > alone[1, 32, "rebuild", "eager"]  # 6 launches more than 20
    layer = {way: layer_50.median_us(rows, 1, 1, way, "graph") for way in layer_50.WAYS}
    others = [layer[way] - alone[1, 32, way, "graph"] for way in ("rebuild", "reuse", "route")]
    assert others == sorted(others, reverse=True) and others[-1] > 0.9 * others[0]  # a little less behind a shorter one
    assert layer["rebuild"] - layer["route"] > alone[1, 32, "rebuild", "graph"]  # more than the routing's share
    assert alone[1, 32, "route", "graph"] < alone[1, 32, "legacy", "graph"] < alone[1, 32, "reuse", "graph"]
    for mode in ("graph", "eager"):  # both lines of reuse cross the band of 10 to 12 %
        assert layer_50.saved_share(rows, "rebuild", "reuse", 1, mode, 100.0) > 0.12
        assert layer_50.saved_share(rows, "rebuild", "reuse", 1, mode, 100_000.0) < 0.10
    for way in ("reuse", "route"):
        tokens = layer_50.sizes(rows)[0]
        shares = [layer_50.saved_share(rows, "rebuild", way, n, "graph", 0.0) for n in tokens]
        assert shares == sorted(shares, reverse=True)
    for n, nbytes in record["bytes"].items():
        assert layer_50.median_us(rows, 1, int(n), "route", "graph") > 2 * nbytes / 4.8e6


def test_the_pictures_say_what_the_record_says(record, monkeypatch):
    said = []
    monkeypatch.setattr(figures, "show", lambda fig, alt, caption="": said.append(figures.picture(fig, alt).alt))
    floors = {int(n): nbytes / 4.8e6 for n, nbytes in record["bytes"].items()}
    for given in (record, record | {"legacy": None}):
        draw_50.draw_floor(given, floors)
    assert said[0] == said[1]
    predicted = {way: (10.0, floors[1]) for way in layer_50.WAYS}
    draw_50.draw_prediction(record, predicted, {"rebuild": 70.0})
    draw_50.draw_modes(record)
    draw_50.draw_shares(record, 500.0)
    rows = layer_50.all_rows(record)
    for way in layer_50.WAYS:
        us = layer_50.median_us(rows, 24, 1, way, "graph") / 24
        assert f"{way} {10 + floors[1]:.0f} predicted, {us:.0f} measured" in said[2]
        assert f"{way} {us:.0f}" in said[3]
    for way in ("reuse", "route"):
        saved = layer_50.saved_share(rows, "rebuild", way, 1, "graph", 500.0)
        assert f"{way} in CUDA graph saves {saved:.0%} at the floor" in said[4]


def test_a_size_that_was_not_measured_is_named(record):
    with pytest.raises(ValueError, match="route was not measured for 24 layers, 7 tokens, graph"):
        layer_50.median_us(layer_50.all_rows(record), 24, 7, "route", "graph")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_without_a_gpu_nothing_is_measured():
    for take in (layer_50.measure_layers, lambda config: layer_50.time_launches(config, "route")):
        with pytest.raises(RuntimeError, match="needs a CUDA device"):
            take(GPT_OSS_20B)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_short_model_is_measured_in_every_way_and_mode(record):
    config = replace(GPT_OSS_20B, num_hidden_layers=2)
    rows = layer_50.measure_layers(config, tokens=2, samples=2)
    assert {(row["layers"], row["way"], row["mode"]) for row in rows} == {
        (layers, way, mode) for layers in (1, 2) for way in layer_50.WAYS for mode in ("graph", "eager")
    }
    assert all(row["median_us"] > 0 for row in rows)
    for way in layer_50.WAYS:
        taken = layer_50.time_launches(config, way)
        assert [launch.name for launch in taken] == record["check"]["launches"][way]
