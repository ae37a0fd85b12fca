"""The bare loader and the test without a model, held against the real streamer."""

from __future__ import annotations

import pytest

from gptoss_lab.course.lab import CAPITALS
from gptoss_lab.weights import hermetic, loading
from gptoss_lab.weights.checkpoint import read_checkpoint
from gptoss_lab.weights.compare import raw_bytes
from gptoss_lab.weights.streaming import plan, stream

LIMIT = 262_144


@pytest.fixture(scope="module")
def checkpoint():
    return read_checkpoint(CAPITALS)


@pytest.fixture(scope="module")
def right(checkpoint):
    """The bytes of each tensor as it arrives."""
    return {name: raw_bytes(tensor) for name, tensor in stream(checkpoint, memory_limit=LIMIT)}


def load(loader, checkpoint, *own):
    """Run a loader on a real stream; what each half got, as bytes at that moment."""
    got = {"experts": {}, "normal": {}}

    def half(kind):
        return lambda weights: got[kind].update((name, raw_bytes(tensor)) for name, tensor in weights)

    loader(stream(checkpoint, memory_limit=LIMIT, concurrency=1), half("experts"), half("normal"), *own)
    return got


def test_drain_loses_what_the_plan_says(checkpoint, right):
    got = load(hermetic.drain, checkpoint)
    loaded = got["experts"] | got["normal"]
    # A tensor may be overwritten by bytes equal to its own, such as zeros.
    lost = {name for name in right if loaded[name] != right[name]}
    assert lost and lost <= set(plan(checkpoint, LIMIT).overwritten)


def test_load_lazily_loses_nothing(checkpoint, right):
    got = load(hermetic.load_lazily, checkpoint, loading.own)
    assert got["experts"] == {name: data for name, data in right.items() if ".experts." in name}
    assert got["normal"] == {name: data for name, data in right.items() if ".experts." not in name}


def test_load_lazily_without_owning_loses_the_others_alone(checkpoint, right):
    got = load(hermetic.load_lazily, checkpoint, lambda tensor: tensor)
    assert all(right[name] == data for name, data in got["experts"].items())
    assert any(right[name] != data for name, data in got["normal"].items())


def test_what_comes_after_a_break_never_arrives():
    received = []
    hermetic.load_lazily(
        iter([("a.weight", 0), ("b.experts.bias", 1), ("c.weight", 2)]),
        load_experts=lambda weights: next(weights),
        load_normal=received.extend,
        own=lambda tensor: tensor,
    )
    assert received == [("a.weight", 0)]


class NeedsGpu:
    def __init__(self):
        raise RuntimeError("no GPU")

    def _load_mxfp4_experts_weights(self, weights):
        raise RuntimeError("the real expert half")

    def _load_normal_weights(self, weights):
        raise RuntimeError("the real normal half")


class Drains(NeedsGpu):
    def _load_weights_mxfp4(self, weights):
        hermetic.drain(weights, self._load_mxfp4_experts_weights, self._load_normal_weights)


class Lists(NeedsGpu):
    """One `list()` in the wrong place."""

    def _load_weights_mxfp4(self, weights):
        hermetic.load_lazily(
            weights, lambda w: self._load_mxfp4_experts_weights(list(w)), self._load_normal_weights, loading.own
        )


class LoadsLazily(NeedsGpu):
    def _load_weights_mxfp4(self, weights):
        hermetic.load_lazily(weights, self._load_mxfp4_experts_weights, self._load_normal_weights, loading.own)


@pytest.mark.parametrize(("model_class", "seen"), [(Drains, [3, 3, 3]), (Lists, [3, 3, 3]), (LoadsLazily, [1, 2, 3])])
def test_produced_when_seen_tells_a_draining_loader_from_a_lazy_one(model_class, seen):
    before = dict(vars(model_class))
    assert hermetic.produced_when_seen(model_class) == seen
    assert dict(vars(model_class)) == before
