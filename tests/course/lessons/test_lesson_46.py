"""The checkers of lesson 46 tell wrong answers apart, and its faults are faults."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from gptoss_lab.course import figures
from gptoss_lab.course.lab import CAPITALS
from gptoss_lab.course.lessons import draw_46, parity_46, stand_ins_46
from gptoss_lab.course.lessons.lesson_46 import check_routing, entered, first_difference
from gptoss_lab.model import load_model
from gptoss_lab.moe import routing
from gptoss_lab.moe.by_hand import schedule_blocks
from gptoss_lab.moe.equivalence import assert_equivalent
from gptoss_lab.moe.reference import reference
from gptoss_lab.moe.routing import topk


def only(*names):
    """An answer that looks at some of the arrays only."""

    def answer(arrays, ids, weights):
        slots = np.argsort(ids.reshape(-1), kind="stable")
        sizes = np.bincount(ids.reshape(-1), minlength=len(arrays["slice_sizes"]))
        expected = {
            "col_sorted_indx": slots,
            "row_sorted_indx": np.argsort(slots),
            "gate_scal": weights.reshape(-1)[slots],
            "slice_sizes": sizes,
            "slice_offs": np.cumsum([0, *sizes]),
            "schedule": schedule_blocks(sizes, 16, len(slots)),
        }
        wrong = [n for n in names if not np.array_equal(arrays[n], expected[n], equal_nan=n == "gate_scal")]
        return f"{wrong[0]} is wrong" if wrong else None

    return answer


ALL = ("col_sorted_indx", "row_sorted_indx", "gate_scal", "slice_sizes", "slice_offs", "schedule")


def contradictions(arrays, ids, weights):
    """What can be seen without the ids."""
    col, row = arrays["col_sorted_indx"], arrays["row_sorted_indx"]
    if not np.array_equal(row[col], np.arange(len(col))):
        return "not inverse"
    if not np.array_equal(np.cumsum([0, *arrays["slice_sizes"]]), arrays["slice_offs"]):
        return "offsets"
    return only("gate_scal")(arrays, ids, weights)


def as_sets(arrays, ids, weights):
    """Rows of each expert as sets: the order among equals is not looked at."""
    col, edges = arrays["col_sorted_indx"], arrays["slice_offs"]
    flat = ids.reshape(-1)
    for expert in range(len(arrays["slice_sizes"])):
        if set(col[edges[expert] : edges[expert + 1]]) != set(np.flatnonzero(flat == expert)):
            return f"rows of expert {expert}"
    if not np.array_equal(arrays["gate_scal"], weights.reshape(-1)[col], equal_nan=True):
        return "weights"
    if not np.array_equal(arrays["row_sorted_indx"], np.argsort(col)):
        return "not inverse"
    return only("slice_sizes", "schedule")(arrays, ids, weights)


def nan_is_a_fault(arrays, ids, weights):
    found = only(*ALL)(arrays, ids, weights)
    same = np.array_equal(arrays["gate_scal"], weights.reshape(-1)[arrays["col_sorted_indx"]])
    return found or (None if same else "weights")


def largest_id_decides(arrays, ids, weights):
    sizes = np.bincount(ids.reshape(-1))
    return None if np.array_equal(sizes, arrays["slice_sizes"]) else "sizes"


def always_32(arrays, ids, weights):
    sizes = np.bincount(ids.reshape(-1), minlength=32)
    return only(*ALL)(arrays, ids, weights) if np.array_equal(sizes, arrays["slice_sizes"]) else "sizes"


def unstable(arrays, ids, weights):
    slots = np.argsort(-ids.reshape(-1), kind="stable")[::-1]
    return None if np.array_equal(slots, arrays["col_sorted_indx"]) else "order"


def asserts(arrays, ids, weights):
    found = only(*ALL)(arrays, ids, weights)
    assert found is None, found


def says_true(arrays, ids, weights):
    return only(*ALL)(arrays, ids, weights) is None


def mends(arrays, ids, weights):
    found = only(*ALL)(arrays, ids, weights)
    arrays["slice_offs"][0] = 7
    return found


def some(*left_out):
    return only(*[name for name in ALL if name not in left_out])


CHECK_ROUTING = {
    "always right": (lambda arrays, ids, weights: None, "planted: weights by the inverse order"),
    "always wrong": (lambda arrays, ids, weights: "wrong", "It returned 'wrong' every time"),
    "contradictions only": (contradictions, "Is each row's expert the right one?"),
    "no weights": (some("gate_scal"), "The weight of row r is that of slot col_sorted_indx[r]"),
    "no way back": (some("row_sorted_indx"), "case 'planted: one order for both ways'"),
    "no offsets": (some("slice_offs"), "case 'planted: offsets of the next expert'"),
    "no sizes": (some("slice_sizes", "slice_offs"), "planted: sizes of two experts exchanged"),
    "no schedule": (some("schedule"), "case 'planted: always block 0'"),
    "no order of the rows": (some("col_sorted_indx"), "case 'planted: a slot twice, another lost'"),
    "sets of slots": (as_sets, "Among equals the order is by slot"),
    "NaN is a fault": (nan_is_a_fault, "pass equal_nan=True"),
    "slices up to the largest id": (largest_id_decides, "a right routing was rejected with 'sizes'"),
    "always 32 slices": (always_32, "The number of slices is len(arrays['slice_sizes'])"),
    "not stable": (unstable, "a right routing was rejected with 'order'"),
    "raises": (asserts, "`check_routing` raised AssertionError"),
    "a bool": (says_true, "a right routing was rejected with True, expected None"),
    "changes its input": (mends, "the function changed its input: `arrays`"),
}


def sentinel(fn, owner, name, *, keep=True, restore="finally", note="before", hand_on="all"):
    """The solution with parts to leave out."""
    original, calls = getattr(owner, name), []

    def stand_in(*args, **kwargs):
        if note == "before":
            calls.append(name)
        result = None
        if hand_on == "all":
            result = original(*args, **kwargs)
        elif hand_on == "positions":
            result = original(*args)
        if note == "after":
            calls.append(name)
        return result if keep else None

    setattr(owner, name, stand_in)
    try:
        fn()
    except ZeroDivisionError:
        if restore == "finally":
            setattr(owner, name, original)
        raise
    if restore != "never":
        setattr(owner, name, original)
    return bool(calls)


def with_parts(**parts):
    return lambda fn, owner, name: sentinel(fn, owner, name, **parts)


SEEN = []


def remembers(fn, owner, name):
    if sentinel(fn, owner, name):
        SEEN.append(owner)
    return any(one is owner for one in SEEN)


def swallows(fn, owner, name):
    with mock.patch.object(owner, name, wraps=getattr(owner, name)) as spy:
        try:
            fn()
        except Exception:
            pass
    return spy.called


def calls_twice(fn, owner, name):
    fn()
    return sentinel(fn, owner, name)


def asks_for_the_name(fn, owner, name):
    fn()
    return name in fn.__code__.co_names


def counts(fn, owner, name):
    with mock.patch.object(owner, name, wraps=getattr(owner, name)) as spy:
        fn()
    return spy.call_count


def leaves_a_note(fn, owner, name):
    answer = sentinel(fn, owner, name)
    owner.was_entered = answer
    return answer


ENTERED = {
    "always": (lambda fn, owner, name: True, "It returned True every time"),
    "it exists": (lambda fn, owner, name: fn() and False or hasattr(owner, name), "case 'another branch is taken'"),
    "remembers the last time": (remembers, "Nothing may be left of the last call"),
    "does not restore": (with_parts(restore="never"), "Keep the original, and put it back with setattr"),
    "does not restore after an error": (with_parts(restore="end"), "Put the original back in `finally`"),
    "throws the result away": (with_parts(keep=False), "what fn got from the function"),
    "does not call the original": (with_parts(hand_on="nothing"), "what fn got from the function"),
    "forgets named arguments": (with_parts(hand_on="positions"), "also named ones"),
    "notes it at the end": (with_parts(note="after"), "Note the call when it begins"),
    "hides the error": (swallows, "expected a ZeroDivisionError"),
    "runs it twice": (calls_twice, "the number of calls of fn"),
    "reads the names": (asks_for_the_name, "case 'first this branch, then that one'"),
    "a count": (counts, "expected the bool True"),
    "leaves a note": (leaves_a_note, "the names in the module"),
}


def walk(a, b, *, types=True, layout=True, nan=True, unknown="fails", lengths=True, keys=True):
    """The solution with parts to leave out."""
    part = {"types": types, "layout": layout, "nan": nan, "unknown": unknown, "lengths": lengths, "keys": keys}
    if types and type(a) is not type(b):
        return ()
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if layout and (a.dtype != b.dtype or a.shape != b.shape):
            return ()
        return None if bool(((a == b) | (nan & (a != a) & (b != b))).all()) else ()
    if dataclasses.is_dataclass(a):
        a, b = vars(a), vars(b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if lengths and len(a) != len(b):
            return ()
        size = min(len(a), len(b))
        a, b = dict(enumerate(a[:size])), dict(enumerate(b[:size]))
    if isinstance(a, dict) and isinstance(b, dict):
        if keys and a.keys() != b.keys():
            return ()
        paths = ((key, walk(a[key], b[key], **part)) for key in a if key in b)
        return next(((key, *path) for key, path in paths if path is not None), None)
    if isinstance(a, (bool, int, float, str, type(None))):
        return None if a is b or bool(a == b) or (nan and a != a and b != b) else ()
    if unknown == "passes":
        return None
    return (None if a == b else ()) if unknown == "asks" else ()


def without(**parts):
    return lambda a, b: walk(a, b, **parts)


def by_assert(a, b):
    try:
        assert_equivalent(a, b)
    except AssertionError as error:
        return (str(error),)
    return None


def all_differences(a, b):
    if dataclasses.is_dataclass(a) and dataclasses.is_dataclass(b):
        names = [name for name in vars(a) if walk(getattr(a, name), getattr(b, name)) is not None]
        return tuple(names) or None
    return walk(a, b)


def joined(a, b):
    path = walk(a, b)
    return path and ".".join(map(str, path))


FIRST_DIFFERENCE = {
    "always equal": (lambda a, b: None, "case 'another value'"),
    "always different": (lambda a, b: (), "It returned () every time"),
    "by identity": (lambda a, b: None if a is b else (), "case 'equal, down to the leaves'"),
    "by ==": (lambda a, b: None if a == b else (), "case 'equal, down to the leaves'"),
    "no layout": (without(layout=False), "compare `dtype` before you compare values"),
    "NaN differs": (without(nan=False), "NaN is not equal to itself"),
    "no types": (without(types=False), "`type(a) is type(b)` tells them apart"),
    "unknown passes": (without(unknown="passes"), "It cannot be compared, so it is a difference"),
    "unknown by ==": (without(unknown="asks"), "The same function on both sides says nothing"),
    "stops at the shorter one": (without(lengths=False), "`zip` stops at the shorter one"),
    "common keys only": (without(keys=False), "Compare the sets of keys"),
    "the message": (by_assert, "expected ('ragged', 'sizes')"),
    "all of them": (all_differences, "expected ('ragged', 'sizes')"),
    "dots": (joined, "expected a tuple"),
    "returns a bool": (lambda a, b: walk(a, b) is None, "the bool True"),
}
WRONG = {check_routing: CHECK_ROUTING, entered: ENTERED, first_difference: FIRST_DIFFERENCE}


def by_mock(fn, owner, name):
    with mock.patch.object(owner, name, wraps=getattr(owner, name)) as spy:
        fn()
    return spy.called


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (check_routing, parity_46.check_routing),
        (entered, parity_46.entered),
        (first_difference, parity_46.first_difference),
        (check_routing, only(*ALL)),
        (entered, by_mock),
        (entered, with_parts()),
        (first_difference, without()),
    ],
    ids=["check_routing", "entered", "first_difference", "only all", "mock", "all parts", "nothing left out"],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, verdict


def test_each_planted_change_of_a_layout_is_one():
    arrays = stand_ins_46.lay_out(*stand_ins_46.picks(33, 20, seed=33), 32)
    for change in (
        stand_ins_46.shifted_offsets,
        stand_ins_46.exchanged_sizes,
        stand_ins_46.exchanged_rows,
        stand_ins_46.exchanged_experts,
        stand_ins_46.slot_twice,
        stand_ins_46.weight_of_the_last_row,
        stand_ins_46.first_block_again,
        stand_ins_46.last_block_lost,
    ):
        changed = change(arrays)
        assert all(not np.array_equal(changed[name], arrays[name]) for name in changed), change.__name__
        assert all(changed[name].dtype == arrays[name].dtype for name in changed), change.__name__
        assert all(changed[name].shape == arrays[name].shape for name in changed), change.__name__


def test_a_layout_is_what_the_reference_lays_out():
    made = reference(torch.randn(33, 32, generator=torch.Generator().manual_seed(0)), 4)
    arrays = parity_46.as_arrays(made)
    weights = np.empty_like(arrays["gate_scal"])
    weights[arrays["col_sorted_indx"]] = arrays["gate_scal"]
    ids = np.empty(len(weights), dtype=np.int64)
    ids[arrays["col_sorted_indx"]] = np.repeat(np.arange(32), arrays["slice_sizes"])
    ours = stand_ins_46.lay_out(ids.reshape(-1, 4), weights, 32)
    assert all(np.array_equal(ours[name], arrays[name]) for name in ours if name != "schedule")
    real = arrays["schedule"][arrays["schedule"] >= 0]
    assert np.array_equal(ours["schedule"][ours["schedule"] >= 0], real)


@pytest.fixture(scope="module")
def model():
    return load_model(CAPITALS)


@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_the_layer_by_blocks_is_the_models_own(model, tokens):
    layer = model.model.layers[0].mlp.experts
    random = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, model.config.hidden_size, generator=random)
    logits = torch.randn(tokens, 32, generator=random)
    logits[:, 3] += 10  # with 40 tokens an expert of three blocks
    out = parity_46.run_blocks(layer, hidden, reference(logits, 4))
    assert torch.allclose(out, layer(hidden, logits), atol=1e-4)


def test_planted_faults_pass_parity_and_no_reference():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)
    sparse, expected = topk(logits, 4), reference(logits, 4)
    expected = dataclasses.replace(expected, gate_scal=sparse.vals.flatten()[expected.col_sorted_indx.long()])
    assert not parity_46.fails(assert_equivalent, routing.reuse(sparse, 32), expected)
    for name, fault in parity_46.FAULTS.items():
        with mock.patch.object(routing, "reuse", fault):
            reused, rebuilt = routing.reuse(sparse, 32), routing.rebuild(sparse, 32)
        assert not parity_46.fails(assert_equivalent, reused, rebuilt), name
        assert parity_46.fails(assert_equivalent, reused, expected), name


def test_only_findings_count_as_failures():
    def raises(error):
        raise error

    assert parity_46.fails(raises, AssertionError("x")) and parity_46.fails(raises, ValueError("x"))
    assert not parity_46.fails(len, "x")
    with pytest.raises(KeyError):
        parity_46.fails(raises, KeyError("x"))


def test_a_child_may_die():
    status, lines = parity_46.run_child(
        "import os, signal\nprint('here', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)"
    )
    assert (status, lines) == (-11, ["here"])


def test_the_table_counts_what_each_check_sees(monkeypatch):
    said = []
    monkeypatch.setattr(figures, "show", lambda fig, alt, caption="": (said.append(alt), plt.close(fig)))
    draw_46.draw_seen({"no fault": {"a": False, "b": True}, "x": {"a": True, "b": False}, "y": {"a": True, "b": True}})
    assert "2 planted faults by 2 checks. Faults seen: a 2, b 1. Alarms without a fault: 1." in said[0]


def test_an_owner_may_be_anything_with_attributes():
    owner = SimpleNamespace(f=lambda: 1)
    assert parity_46.entered(lambda: owner.f(), owner, "f") is True
