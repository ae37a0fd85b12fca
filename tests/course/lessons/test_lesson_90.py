"""The checkers of lesson 90 tell wrong answers apart by running them, and what the lesson claims holds."""

from __future__ import annotations

import hashlib
import math
from functools import cache

import pytest
import torch

from gptoss_lab.course.lab import CAPITALS
from gptoss_lab.course.lessons import ferry_90, loader_90, step_90
from gptoss_lab.course.lessons.check_review_90 import BLIND, FAULT
from gptoss_lab.course.lessons.check_step_90 import _inputs, _repeats
from gptoss_lab.course.lessons.lesson_90 import decode_step, falsely_tied, load_tied, needless, objection
from gptoss_lab.course.lessons.loader_90 import ties_by_plan
from gptoss_lab.moe.launches import launches
from gptoss_lab.weights.checkpoint import GPT_OSS_20B, TensorSpec, read_checkpoint, shard, tensor_specs
from gptoss_lab.weights.compare import raw_bytes, same_bytes
from gptoss_lab.weights.plan import plan
from gptoss_lab.weights.streaming import stream


def ties(key=lambda spec, slot: (spec.dtype, spec.shape, slot.start), keep="first", limit=lambda given: given):
    """An answer that is right but for what it takes for the same place, which one it ties to, or the limit."""

    def answer(shards, given):
        specs = {spec.name: spec for of_shard in shards for spec in of_shard}
        seen, found = {}, {}
        for slot in plan(shards, limit(given)).slots:
            place = key(specs[slot.name], slot)
            if place in seen:
                found[slot.name] = seen[place]
            if keep == "last" or place not in seen:
                seen[place] = slot.name
        return found

    return answer


def overwritten_and_by_whom(shards, limit):
    packed = plan(shards, limit)
    return {packed.overwriters(name)[0].name: name for name in packed.overwritten}


def per_file(shards, limit):
    return {name: other for of_shard in shards for name, other in ties_by_plan([of_shard], limit).items()}


FALSELY_TIED = {
    "nothing": (
        lambda shards, limit: {},
        "one request for each tensor': falsely_tied(shards, 1024) lacks ['t01']",
    ),
    "all that is overwritten": (overwritten_and_by_whom, "case 'overwritten by tensors of other sizes'"),
    "any tensor at the same place": (
        ties(lambda spec, slot: slot.start),
        "case 'overwritten by tensors of other sizes'",
    ),
    "any tensor of the same kind": (ties(lambda spec, slot: (spec.dtype, spec.shape)), "case 'a buffer that holds"),
    "the same size at the same place": (
        ties(lambda spec, slot: (spec.nbytes, slot.start)),
        "case 'the same bytes of buffer, other shapes and dtypes'",
    ),
    "the same shape, whatever the dtype": (
        ties(lambda spec, slot: (spec.shape, slot.start)),
        "case 'the same bytes of buffer",
    ),
    "to the last one": (ties(keep="last"), "case 'six of a kind'"),
    "each file by itself": (per_file, "case 'several files, both ways round'"),
    "the smallest buffer": (ties(limit=lambda given: 0), "case 'overwritten by equals, at other places'"),
    "names alone": (lambda shards, limit: sorted(ties_by_plan(shards, limit)), "expected a dict"),
    "the other way round": (
        lambda shards, limit: {other: name for name, other in ties_by_plan(shards, limit).items()},
        "falsely_tied(shards, 1024) lacks ['t01']",
    ),
}


def loads(key=raw_bytes, kind=lambda tensor: (tensor.dtype, tensor.shape), drop=(), tie=True, memory=None):
    """An answer that is right but for what it remembers, which tensors it compares, or what it leaves out."""

    def answer(model, weights):
        seen = {} if memory is None else memory
        for name, tensor in weights:
            what = (kind(tensor), key(tensor))
            if tie and what in seen:
                model.tie(name, seen[what])
            elif not name.endswith(drop or "\0"):
                model.copy_in(name, tensor)
                seen[what] = name

    return answer


def digest(tensor):
    return hashlib.sha256(raw_bytes(tensor)).digest()


def after(own):
    """The lesson's loader, with each tensor owned in some way before it gets it."""
    return lambda model, weights: loader_90.load_tied(model, ((name, own(tensor)) for name, tensor in weights))


def with_peers(same=same_bytes, last_only=False):
    """An answer that compares with the parameters, and is right but for how, or with how many."""

    def answer(model, weights):
        distinct = {}
        for name, tensor in weights:
            peers = distinct.setdefault((tensor.dtype, tensor.shape), [])
            peers = peers[-1:] if last_only else peers
            twin = next((peer for peer in peers if same(model.tensors[peer], tensor)), None)
            if twin:
                model.tie(name, twin)
            else:
                model.copy_in(name, tensor)
                distinct[tensor.dtype, tensor.shape].append(name)

    return answer


def forgets_when_the_buffer_turns(model, weights):
    seen, last = {}, 0
    for name, tensor in weights:
        if tensor.data_ptr() <= last:
            seen.clear()
        last = tensor.data_ptr()
        what = (tensor.dtype, tensor.shape, digest(tensor))
        if what in seen:
            model.tie(name, seen[what])
        else:
            model.copy_in(name, tensor)
            seen[what] = name


def keeps_all_for_show(model, weights):
    kept = []
    for name, tensor in weights:
        kept.append(tensor)
        loads(digest)(model, [(name, tensor)])


def keeps_all_and_ties(model, weights):
    kept, seen = [], {}
    for name, tensor in weights:
        kept.append(tensor)
        what = (tensor.dtype, tensor.shape, digest(tensor))
        if what in seen:
            model.tie(name, seen[what])
        else:
            model.copy_in(name, tensor)
            seen[what] = name


LOAD_TIED = {
    "does nothing": (lambda model, weights: None, "case 'data/capitals, eight limits'"),
    "the lesson's loader": (loader_90.load_tied, "case 'data/capitals, eight limits': with a limit of 262144"),
    "contiguous() is no copy": (after(torch.Tensor.contiguous), "case 'data/capitals, eight limits'"),
    "detach() is no copy": (after(torch.Tensor.detach), "case 'data/capitals, eight limits'"),
    "drains, then loads": (
        lambda model, weights: loads(digest)(model, list(weights)),
        "case 'data/capitals, eight limits'",
    ),
    "owns all": (after(torch.Tensor.clone), "cost 'nothing waits beside the parameters'"),
    "owns all, by another name": (after(lambda t: t.to("cpu", copy=True)), "KiB were at once in tensors"),
    "owns all in NumPy": (
        after(lambda t: torch.from_numpy(t.view(torch.uint8).numpy().copy()).view(t.dtype)),
        "beside",
    ),
    "keeps the bytes": (loads(), "KiB were at once in Python's objects"),
    "no ties": (loads(digest, tie=False), "the parameters have 13312 bytes, expected 9216"),
    "no ties across requests": (forgets_when_the_buffer_turns, "case 'equals near and far apart share'"),
    "the last one alone": (with_peers(last_only=True), "case 'equals near and far apart share'"),
    "by value": (with_peers(torch.equal), "case 'equal in value, not in bytes'"),
    "by value, with NaN": (
        with_peers(lambda a, b: a.shape == b.shape and torch.allclose(a, b, 0, 0, equal_nan=True)),
        "case 'equal in value, not in bytes'",
    ),
    "whatever the shape": (loads(digest, kind=lambda t: t.dtype), "case 'the same bytes in another shape or dtype'"),
    "whatever the dtype": (loads(digest, kind=lambda t: t.nbytes), "case 'the same bytes in another shape or dtype'"),
    "by the sum": (loads(lambda t: sum(raw_bytes(t))), "case 'data/capitals, eight limits'"),
    "by the first bytes": (loads(lambda t: raw_bytes(t)[:512]), "case"),
    "drops the head": (loads(digest, drop="lm_head.weight"), "model.tensors lacks ['lm_head.weight']"),
    "remembers the last model": (loads(digest, memory={}), "raised KeyError"),
    "holds views that it never reads": (keeps_all_and_ties, "cost 'no view is held while it is overwritten'"),
    "one tensor at a time": (keeps_all_for_show, "expected 9216"),
}


def positions(same, over=all):
    """An answer that is right but for what it takes for the same call, or for how it puts the runs together."""
    return lambda runs: [
        i for i in range(len(runs[0])) if any(over(same(run[i], run[j]) for run in runs) for j in range(i))
    ]


def each_run_alone(runs):
    found = [set(positions(lambda a, b: a == b)([run])) for run in runs]
    return sorted(set.intersection(*found))


NEEDLESS = {
    "nothing": (lambda runs: [], "case 'the same call on the same bytes'"),
    "by name": (positions(lambda a, b: a.op == b.op), "case 'the same names on other bytes'"),
    "by result": (positions(lambda a, b: a.result == b.result), "case 'another way to the same result'"),
    "by name and result": (
        positions(lambda a, b: (a.op, a.result) == (b.op, b.result)),
        "case 'another way to the same result'",
    ),
    "without the result": (
        positions(lambda a, b: (a.op, a.inputs) == (b.op, b.inputs)),
        "case 'the same question, another answer'",
    ),
    "without numbers": (positions(lambda a, b: (a.op, a.inputs[0]) == (b.op, b.inputs[0])), "case 'another number"),
    "inputs in any order": (
        positions(lambda a, b: (a.op, sorted(a.inputs)) == (b.op, sorted(b.inputs))),
        "case 'the inputs exchanged'",
    ),
    "the first run alone": (lambda runs: positions(lambda a, b: a == b)(runs[:1]), "case 'equal by chance in one"),
    "in any run": (positions(lambda a, b: a == b, over=any), "case 'equal by chance in one of the runs'"),
    "each run by itself": (each_run_alone, "case 'equal to another call in each run'"),
    "the earlier ones": (
        lambda runs: [
            j for j in range(len(runs[0])) if any(runs[0][i] == runs[0][j] for i in range(j + 1, len(runs[0])))
        ],
        "case 'the same call on the same bytes'",
    ),
}


def step(table=None, again=True, quantise=step_90.quantise, once=True, order=False, arange_once=True):
    """An answer that is right but for the rotary table, what it quantises, or what it does once."""

    def answer(x, position, layers):
        tables = {}
        make = table or tabulate
        ramp = torch.arange(step_90.WIDTH // 2, device=x.device) if arange_once and layers else None
        for layer in layers:
            into = quantise(x)
            if layer.base not in tables:
                tables[layer.base] = make(position, layer.base, ramp)
            turned = tables[layer.base]
            q, k, v = (step_90.multiply(w, *(into if once else quantise(x))) for w in (layer.q, layer.k, layer.v))
            mixed = step_90.attend(step_90.turn(q, *turned), step_90.turn(k, *turned), v, layer)
            x = step_90.project(mixed, layer.o) + x if order else x + step_90.project(mixed, layer.o)
            into = quantise(x) if again else into
            gate, up = step_90.multiply(layer.gate, *into), step_90.multiply(layer.up, *into)
            x = x + step_90.project(gate * gate.sigmoid() * up, layer.down)
        return x

    return answer


def tabulate(position, base, ramp):
    half = step_90.WIDTH // 2
    ramp = torch.arange(half, device=position.device) if ramp is None else ramp
    angles = position * (ramp * (-math.log(base) / half)).exp()
    return angles.cos(), angles.sin()


def by_power(position, base, ramp):
    angles = position * base ** (-ramp / (step_90.WIDTH // 2))
    return angles.cos(), angles.sin()


def remembering(key):
    """A table that outlives the step, found again by `key`."""
    kept = {}

    def table(position, base, ramp):
        name = key(position, base)
        if name not in kept:
            kept[name] = tabulate(position, base, ramp)
        return kept[name]

    return table


def remembering_by_identity():
    """The whole answer kept, and found again by which objects it was made from."""
    kept = {}

    def answer(x, position, layers):
        key = (id(layers[0]) if layers else 0, x.data_ptr(), position.data_ptr(), int(position))
        if key not in kept:
            kept[key] = step()(x, position, layers)
        return kept[key]

    return answer


def remembering_quantised():
    """What was quantised is kept, and found again by where the input lies."""
    kept = {}

    def quantise(x):
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = x, step_90.quantise(x)
        return kept[x.data_ptr()][1]

    return step(quantise=quantise)


def in_place(x, position, layers):
    result = step_90.decode_step(x, position, layers)
    return x.copy_(result)


DECODE_STEP = {
    "the lesson's step": (step_90.decode_step, "cost 'no call that repeats another'"),
    "returns the input": (lambda x, position, layers: x, "case 'one layer'"),
    "nothing for no layers": (lambda x, p, layers: step()(x, p, layers) if layers else None, "case 'no layers'"),
    "one table for all layers": (
        lambda x, p, layers: step(table=lambda position, base, ramp: tabulate(position, layers[0].base, ramp))(
            x, p, layers
        ),
        "case 'layers of two kinds'",
    ),
    "quantised once a layer": (step(again=False), "case 'one layer'"),
    "another formula": (step(table=by_power), "case"),
    "a table kept for each base": (
        step(table=remembering(lambda position, base: base)),
        "case 'one layer'",
    ),
    "a table kept for each position object": (
        step(table=remembering(lambda position, base: (id(position), base))),
        "case",
    ),
    "a result kept by where its inputs lie": (remembering_by_identity(), "in the same memory'"),
    "quantised values kept by where they lie": (remembering_quantised(), "case"),
    "writes into its input": (in_place, "the function changed its input"),
    "tables once, quantised each time": (step(once=False), "launches"),
    "quantised once, tables each time": (
        lambda x, p, layers: _tables_each_time(x, p, layers),
        "cost 'no call that repeats another'",
    ),
    "the ramp for each base": (
        step(arange_once=False),
        "layers: 4, rotary bases: 2; 280 launches, 376 before, and 279 are enough",
    ),
}


def _tables_each_time(x, position, layers):
    for layer in layers:
        into = step_90.quantise(x)
        q, k, v = (step_90.multiply(w, *into) for w in (layer.q, layer.k, layer.v))
        q, k = step_90.rotate(q, position, layer.base), step_90.rotate(k, position, layer.base)
        x = x + step_90.project(step_90.attend(q, k, v, layer), layer.o)
        into = step_90.quantise(x)
        gate, up = step_90.multiply(layer.gate, *into), step_90.multiply(layer.up, *into)
        x = x + step_90.project(gate * gate.sigmoid() * up, layer.down)
    return x


def line_of(text):
    """The number in the diff of the first line that starts so."""
    return next(i for i, line in enumerate(ferry_90.diff(), start=1) if line[1:].strip().startswith(text))


def review(**other):
    """The right objection, but for some of its parts; a part may be a function of the limit."""

    def answer(limit):
        third = limit // 3
        right = {
            "line": line_of(FAULT[0]),
            "test_line": line_of(BLIND[0]),
            "kind": "wrong",
            "files": [[third], [third, limit - third]],
            "tensor": "f1.t00",
        }
        return right | {key: value(limit) if callable(value) else value for key, value in other.items()}

    return answer


OBJECTION = {
    "nothing": (lambda limit: None, "the review is not a dict of line (int)"),
    "prose": (lambda limit: "the loader reads too late", "the review is not a dict"),
    "one file": (
        review(files=lambda limit: [[limit // 3, limit // 3, limit - limit // 3]]),
        "case 'a limit of 4096': with a limit of 4096 the new code loads these files right",
    ),
    "all in one request": (review(files=lambda limit: [[limit // 3], [limit // 3]]), "loads these files right"),
    "the border of a request at that of a file": (
        review(files=lambda limit: [[limit], [limit // 3, limit - limit // 3]]),
        "loads these files right",
    ),
    "does not reach back": (
        review(files=lambda limit: [[limit // 2], [limit // 2, limit // 2]]),
        "loads these files right",
    ),
    "files for one limit": (review(files=[[1365], [1365, 2731]]), "case 'a limit of 9999'"),
    "a tensor above the limit": (review(files=lambda limit: [[8], [8, limit + 1]]), "a size in files is not a whole"),
    "empty tensors": (review(files=lambda limit: [[0], [limit]]), "a size in files is not a whole"),
    "a file without tensors": (review(files=lambda limit: [[], [limit]]), "one list of one or more for each file"),
    "the tensor that overwrites": (review(tensor="f1.t01"), "some tensor is wrong, and 'f1.t01' is not"),
    "the first of all tensors": (review(tensor="f0.t00"), "some tensor is wrong, and 'f0.t00' is not"),
    "missing": (review(kind="missing"), "that is not what a user of the new code would report"),
    "a kind of one's own": (review(kind="stale"), "expected one of crash, missing, wrong, memory, slow"),
    "the fused call": (review(line=line_of("torch._foreach_copy_")), "stands up: `torch._foreach_copy_"),
    "the header read": (review(line=line_of("sizes = [stored")), "stands up: `sizes = [stored"),
    "an old line": (review(line=line_of("for name, tensor in stream(")), "not a line that the pull request adds"),
    "no such line": (review(line=400), "line 400 is not a line that the pull request adds"),
    "the limits of the test": (review(test_line=line_of("for limit in range(")), "test_line"),
    "too much for a test": (
        review(files=lambda limit: [[limit // 3], [limit // 3, limit - limit // 3, 9, 9]]),
        "cost 'small enough for a test': files name 5 tensors",
    ),
}
WRONG = {
    falsely_tied: FALSELY_TIED,
    load_tied: LOAD_TIED,
    needless: NEEDLESS,
    decode_step: DECODE_STEP,
    objection: OBJECTION,
}


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (falsely_tied, ties_by_plan),
        (falsely_tied, ties()),
        (load_tied, loads(digest)),
        (load_tied, with_peers()),
        (load_tied, with_peers(lambda a, b: bool((a.view(torch.uint8) == b.view(torch.uint8)).all()))),
        (needless, positions(lambda a, b: a == b)),
        (decode_step, step()),
        (decode_step, step(order=True)),
        (objection, review()),
        (objection, review(line=line_of(FAULT[1]), test_line=line_of(BLIND[1]))),
        (objection, review(files=lambda n: [[n // 4], [n // 4, n - n // 4], [1]])),
    ],
    ids=lambda value: None if callable(value) else repr(value),
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("checker", list(WRONG), ids=repr)
def test_no_checker_gives_a_hint(checker):
    assert not [case.label for case in [*checker.cases, *checker.costs] if case.hint]


@cache
def capitals():
    return read_checkpoint(CAPITALS)


@pytest.mark.parametrize("limit", [262_144, 700_001, 1_062_144, 1_600_000])
def test_the_loader_is_wrong_where_the_plan_says_and_nowhere_else(limit):
    checkpoint = capitals()
    shards = [[s.spec for s in checkpoint.tensors.values() if s.file == file] for file in checkpoint.files]
    wrong = loader_90.wrong_at(loader_90.load_tied, checkpoint.files, limit)
    assert wrong == sorted(ties_by_plan(shards, limit))
    assert bool(wrong) == (limit < 1_600_000)


def test_the_large_model_of_the_cost_has_false_ties():
    shards = shard(tensor_specs(GPT_OSS_20B), 4_800_000_000)
    assert ties_by_plan(shards, 1_158_266_880)


def test_random_tensors_are_all_different():
    specs = [TensorSpec(f"t{i}", dtype, (64,)) for i, dtype in enumerate(["U8", "BF16", "F32"] * 4)]
    assert len({raw_bytes(tensor) for tensor in loader_90.random_tensors(specs).values()}) == len(specs)


@pytest.mark.parametrize("bases", [(), (1e4,), (1e4, 1e4, 1e4), (1e4, 1e6, 1e4), (1e4, 1e6, 1e5)])
def test_the_repeats_of_the_step_are_counted_right(bases):
    inputs = _inputs(bases)
    runs = [step_90.record(lambda a=a: step_90.decode_step(*a)) for a in inputs]
    assert len(runs[0]) == len(launches(lambda: step_90.decode_step(*inputs[0])))
    assert len(positions(lambda a, b: a == b)(runs)) == _repeats(bases)
    assert all(torch.isfinite(step_90.decode_step(*a)).all() for a in inputs)


def test_the_pull_requests_test_passes_and_its_code_fails_on_capitals_at_some_limits():
    ferry_90.run_test()
    files = capitals().files
    assert not ferry_90.run(ferry_90.After.load, files, capitals().total_bytes)
    assert ferry_90.run(ferry_90.After.load, files, 462_144)
    assert not ferry_90.run(ferry_90.Before.load, files, 462_144)


def test_the_pull_requests_test_can_fail(monkeypatch):
    def drains(parameters, files, limit):
        for name, tensor in list(stream(files, memory_limit=limit, concurrency=1)):
            parameters[name].copy_(tensor)

    monkeypatch.setattr(ferry_90.After, "load", drains)
    with pytest.raises(AssertionError):
        ferry_90.run_test()


def test_the_diff_is_the_code_that_runs():
    lines = ferry_90.diff()
    assert [line for line in lines if line.startswith(("---", "+++"))][1] == "+++ b/ferry/load.py"
    for text in (*FAULT, *BLIND):
        assert lines[line_of(text) - 1].startswith("+")
    added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert not [line for line in added if "After." in line]
    compile("\n".join(added), "ferry", "exec")
