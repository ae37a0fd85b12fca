"""The checkers of the loader in `90__on_your_own`. They give no hints: what was seen is all that is said."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gptoss_lab.course.check import Checker, Mismatch, expect_equal
from gptoss_lab.course.lab import CAPITALS
from gptoss_lab.course.lessons.loader_90 import (
    TiedModel,
    random_tensors,
    read_files,
    ties_by_plan,
    ties_for_real,
    watch,
    written,
)
from gptoss_lab.weights.checkpoint import GPT_OSS_20B, TensorSpec, read_checkpoint, shard, tensor_specs
from gptoss_lab.weights.streaming import stream

falsely_tied = Checker(
    "90.1", "falsely_tied", done="Every one of them, at every limit, from sizes alone.", seconds=30.0
)


def _specs(*sizes: int, start: int = 0) -> list[TensorSpec]:
    return [TensorSpec(f"t{i:02}", "U8", (size,)) for i, size in enumerate(sizes, start=start)]


def _expect_ties(learner: Callable, shards: list[list[TensorSpec]], *limits: int) -> None:
    with written(*(random_tensors(specs, seed) for seed, specs in enumerate(shards))) as files:
        for limit in limits:
            expect_equal(learner(shards, limit), ties_for_real(files, limit), f"falsely_tied(shards, {limit})")


@falsely_tied.case("a buffer that holds everything")
def _(falsely_tied):
    _expect_ties(falsely_tied, [_specs(1024, 1024, 2048)], 4096, 65536)


@falsely_tied.case("one request for each tensor")
def _(falsely_tied):
    _expect_ties(falsely_tied, [_specs(1024, 1024)], 1024)


@falsely_tied.case("overwritten by tensors of other sizes")
def _(falsely_tied):
    _expect_ties(falsely_tied, [_specs(1024, 1536, 1280, 1792)], 1792)


@falsely_tied.case("overwritten by equals, at other places")
def _(falsely_tied):
    _expect_ties(falsely_tied, [_specs(1024, 1024, 512, 512, 1024, 1024)], 2560)


@falsely_tied.case("the same bytes of buffer, other shapes and dtypes")
def _(falsely_tied):
    shapes = [("t0", "U8", (64, 32)), ("t1", "U8", (32, 64)), ("t2", "U8", (64, 32)), ("t3", "BF16", (1024,))]
    shapes.append(("t4", "U8", (1024,)))
    _expect_ties(falsely_tied, [[TensorSpec(*shape) for shape in shapes]], 2048)


@falsely_tied.case("six of a kind")
def _(falsely_tied):
    _expect_ties(falsely_tied, [_specs(1024, 1024, 1024, 1024, 1024, 1024)], 1024, 2048, 3072, 4096)


@falsely_tied.case("several files, both ways round")
def _(falsely_tied):
    files = [_specs(1024, 512), _specs(1024, 768, start=2), _specs(512, 1024, start=4)]
    _expect_ties(falsely_tied, files, 1024, 1792, 2560, 3328)
    _expect_ties(falsely_tied, files[::-1], 1024, 1792, 2560, 3328)


@falsely_tied.case("data/capitals, twelve limits")
def _(falsely_tied):
    checkpoint = read_checkpoint(CAPITALS)
    shards = [[s.spec for s in checkpoint.tensors.values() if s.file == file] for file in checkpoint.files]
    for limit in range(262_144, checkpoint.total_bytes, 218_000):
        expected = ties_for_real(checkpoint.files, limit)
        expect_equal(falsely_tied(shards, limit), expected, f"falsely_tied(shards, {limit})")


@falsely_tied.cost("gpt-oss-20b, which is not here")
def _(falsely_tied):
    shards = shard(tensor_specs(GPT_OSS_20B), 4_800_000_000)
    for limit in (1_158_266_880, 2_000_000_000, 9_000_000_000):
        expect_equal(falsely_tied(shards, limit), ties_by_plan(shards, limit), f"falsely_tied(shards, {limit})")


load_tied = Checker("90.2", "load_tied", done="Right in every buffer, and nothing waits.", seconds=30.0)
KIB = 1024


def _expect_loaded(learner: Callable, files: list, *limits: int, distinct: int | None = None) -> None:
    stored = read_files(files)
    for limit in limits:
        model = TiedModel()
        learner(model, stream(files, memory_limit=limit))
        expect_equal(model.tensors, stored, f"with a limit of {limit}, model.tensors", bitwise=True)
        if distinct is not None and model.parameter_bytes != distinct:
            raise Mismatch(
                f"with a limit of {limit} the parameters have {model.parameter_bytes} bytes, expected {distinct}"
            )


@load_tied.case("data/capitals, eight limits")
def _(load_tied):
    checkpoint = read_checkpoint(CAPITALS)
    limits = range(262_144, checkpoint.total_bytes + 1, 342_000)
    _expect_loaded(load_tied, checkpoint.files, *limits, checkpoint.total_bytes, distinct=checkpoint.total_bytes)


@load_tied.case("data/capitals, files in other orders")
def _(load_tied):
    files = read_checkpoint(CAPITALS).files
    for order in (files[::-1], [files[1], files[2], files[0]]):
        _expect_loaded(load_tied, order, 262_144, 600_000)


def _twins() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Two files with 13 tensors of 1024 bytes; 4 of them have an equal before them."""
    first = random_tensors(_specs(*[1024] * 7))
    second = random_tensors(_specs(*[1024] * 6, start=7), seed=91)
    first["t01"], second["t07"] = first["t00"].clone(), first["t00"].clone()
    second["t09"], second["t12"] = first["t04"].clone(), second["t08"].clone()
    return first, second


@load_tied.case("equals near and far apart share")
def _(load_tied):
    with written(*_twins()) as files:
        _expect_loaded(load_tied, files, 1024, 2048, 3072, 5120, 13312, distinct=9 * 1024)
        _expect_loaded(load_tied, files[::-1], 1024, 3072, 13312, distinct=9 * 1024)


@load_tied.case("equal in value, not in bytes")
def _(load_tied):
    zeros, nan = torch.zeros(256), torch.full((256,), float("nan"))
    other_nan = (nan.view(torch.int32) + 1).view(torch.float32)
    tensors = {"a": zeros, "b": -zeros, "c": nan, "d": other_nan, "e": nan.clone(), "f": zeros.clone()}
    with written(tensors) as files:
        _expect_loaded(load_tied, files, 1024, 2048, 6144, distinct=4 * 1024)


@load_tied.case("the same bytes in another shape or dtype")
def _(load_tied):
    raw = random_tensors(_specs(1024))["t00"]
    shapes = {"a": raw, "b": raw.clone().view(32, 32), "c": raw.clone().view(torch.int16), "d": raw.clone()}
    with written(shapes) as files:
        _expect_loaded(load_tied, files, 1024, 2048, 4096, distinct=3 * 1024)


@load_tied.case("the same numbers in another order")
def _(load_tied):
    raw = torch.arange(1024).to(torch.uint8)
    turned = {"a": raw, "b": raw.flip(0), "c": raw.roll(8), "d": torch.cat([raw[:512], raw[512:].flip(0)])}
    with written(turned) as files:
        _expect_loaded(load_tied, files, 1024, 4096, distinct=4 * 1024)


@load_tied.case("two models, one after the other")
def _(load_tied):
    for seed in (1, 2):
        with written(random_tensors(_specs(*[1024] * 4), seed=seed)) as files:
            _expect_loaded(load_tied, files, 1024, 4096, distinct=4 * 1024)


@load_tied.case("an empty stream")
def _(load_tied):
    model = TiedModel()
    load_tied(model, iter(()))
    expect_equal(model.tensors, {}, "model.tensors")


def _watched(learner: Callable) -> list:
    """Loads of twelve distinct tensors of 256 KiB, and of tensors that the loader may want to remember."""
    with written(random_tensors(_specs(*[256 * KIB] * 12))) as files:
        watch(learner, files, 512 * KIB)  # the first one pays for imports
        return [(limit, watch(learner, files, limit)) for limit in (256 * KIB, 512 * KIB, 768 * KIB)]


@load_tied.cost("no view is held while it is overwritten")
def _(load_tied):
    for limit, load in _watched(load_tied):
        if load.kept_too_long:
            raise Mismatch(f"with a limit of {limit} it still held {', '.join(load.kept_too_long[:3])} when a later "
                           f"request was written over it ({len(load.kept_too_long)} of 12 tensors)")  # fmt: skip


@load_tied.cost("nothing waits beside the parameters")
def _(load_tied):
    for limit, load in _watched(load_tied):
        python_bytes = load.python_bytes - limit  # the staging buffer is an array of NumPy
        for what, used, room in (("tensors", load.tensor_bytes, 3), ("Python's objects", python_bytes, 4)):
            if used > room * 256 * KIB:
                raise Mismatch(f"of 3072 KiB of weights {used // KIB} KiB were at once in {what} beside the "
                               f"parameters and the buffer, expected {room * 256} KiB at most")  # fmt: skip
