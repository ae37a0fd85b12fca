"""The checkers of `50__what_it_buys`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gptoss_lab.config import Config
from gptoss_lab.course.check import Checker, Mismatch, expect_equal, expect_raises
from gptoss_lab.weights.layout import GPT_OSS_20B, GPT_OSS_120B, TINY, tensor_specs

least_bytes = Checker("50.1", "least_bytes", done="That is what the memory has to deliver, whatever the kernels do.")


def _count(config: Config, experts: int) -> int:
    """The bytes by the checkpoint's own shapes: those of one layer's expert tensors and of its router."""
    layer = tensor_specs(replace(config, num_hidden_layers=1))
    packed = sum(spec.nbytes for spec in layer if spec.name.endswith(("_blocks", "_scales")))
    router = sum(spec.nbytes for spec in layer if spec.name.endswith("router.weight"))
    return experts * packed // config.num_local_experts + router


def _expect_bytes(learner: Callable, config: Config, chosen: torch.Tensor, experts: int) -> None:
    asked = f"{experts} experts of {config.num_local_experts}, hidden {config.hidden_size}"
    expect_equal(learner(config, chosen), _count(config, experts), f"the number of bytes for {asked}")


def _ids(*rows: list[int], dtype: torch.dtype = torch.int16) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype)


@least_bytes.case(
    "a tiny layer, one expert",
    hint="gate, up and down: three matrices of hidden x intermediate. A value has half a byte, and 32 of them share a "
    "scale of one byte. Then the router, two bytes a value. No biases.",
)
def _(least_bytes):
    _expect_bytes(least_bytes, TINY, _ids([5]), 1)


@least_bytes.case("gpt-oss-20b, one token", hint="Of all experts only those in `chosen` are read.")
def _(least_bytes):
    _expect_bytes(least_bytes, GPT_OSS_20B, _ids([30, 2, 17, 9]), 4)


@least_bytes.case("two tokens, eight experts", hint="Count every token's experts. Expert 0 is an expert.")
def _(least_bytes):
    _expect_bytes(least_bytes, GPT_OSS_20B, _ids([0, 1, 2, 3], [31, 30, 29, 28]), 8)


@least_bytes.case("two tokens choose the same", hint="An expert that two tokens chose is read once.")
def _(least_bytes):
    _expect_bytes(least_bytes, GPT_OSS_20B, _ids([3, 8, 1, 20], [20, 1, 8, 3]), 4)


@least_bytes.case("two tokens share one expert", hint="Distinct over all tokens, not for each token.")
def _(least_bytes):
    _expect_bytes(least_bytes, GPT_OSS_20B, _ids([3, 8, 1, 20], [7, 20, 0, 31]), 7)


@least_bytes.case("gpt-oss-120b", hint="The router has a row for each expert that there is, chosen or not.")
def _(least_bytes):
    _expect_bytes(least_bytes, GPT_OSS_120B, _ids([127, 64, 0, 3]), 4)


@least_bytes.case(
    "intermediate is not hidden", hint="Each of the three matrices has hidden * intermediate values, the router hidden."
)
def _(least_bytes):
    config = replace(TINY, hidden_size=96, intermediate_size=320)
    _expect_bytes(least_bytes, config, _ids([1, 4], [4, 2]), 3)


@least_bytes.case("an id of -1", hint="-1 says no expert: it reads nothing.")
def _(least_bytes):
    _expect_bytes(least_bytes, GPT_OSS_20B, _ids([4, -1, 6, -1], [-1, -1, -1, 4]), 2)


@least_bytes.case("no token has an expert", hint="The router is read for every token, whatever comes out of it.")
def _(least_bytes):
    _expect_bytes(least_bytes, TINY, _ids([-1, -1]), 0)


@least_bytes.case("no tokens", hint="Without a token nothing is computed, and nothing read: 0.")
def _(least_bytes):
    expect_equal(least_bytes(TINY, torch.zeros((0, 4), dtype=torch.int16)), 0, "the number of bytes")


@least_bytes.case(
    "64 tokens, int64 ids, four of eight columns",
    hint="`chosen` need not be contiguous: `reshape` or `flatten`, not `view`.",
    hint_for=RuntimeError,
)
def _(least_bytes):
    random = torch.Generator().manual_seed(0)
    wide = torch.stack([torch.randperm(128, generator=random)[:8] for _ in range(64)])  # [64, 8]
    distinct = {expert for row in wide.tolist() for expert in row[2:6]}
    _expect_bytes(least_bytes, GPT_OSS_120B, wide[:, 2:6], len(distinct))


saved_share = Checker("50.2", "saved_share", done="The layers' gain, and what it is a part of.")


def _row(layers: int, tokens: int, way: str, mode: str, median_us: float) -> dict[str, Any]:
    about = {"layers": layers, "tokens": tokens, "way": way, "mode": mode}
    return about | {"median_us": median_us, "low_us": 0.5 * median_us, "high_us": 3.0 * median_us, "samples": 30}


def _pair(slow: float, fast: float, layers: int = 24, tokens: int = 1, mode: str = "graph") -> list[dict[str, Any]]:
    return [_row(layers, tokens, "rebuild", mode, slow), _row(layers, tokens, "reuse", mode, fast)]


def _expect_share(
    learner: Callable,
    rows: list[dict[str, Any]],
    expected: float,
    ways: tuple[str, str] = ("rebuild", "reuse"),
    tokens: int = 1,
    mode: str = "graph",
    rest_us: float = 0.0,
) -> None:
    share = learner(rows, *ways, tokens, mode, rest_us)
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        expect_equal(share, expected, "the share")
    if not abs(share - expected) < 1e-9:
        what = f"{ways[0]} -> {ways[1]}, {tokens} tokens, {mode}, rest_us {rest_us:g}"
        medians = ", ".join(
            f"{row['way']} {row['median_us']:g} ({row['layers']} layers, {row['tokens']} tokens, {row['mode']})"
            for row in rows
        )
        raise Mismatch(f"the share is {share:.10g}, expected {expected:.10g}, for {what}, with medians {medians}")


LACKS = (KeyError, IndexError, StopIteration, TypeError, UnboundLocalError)  # what a row that is not there may raise


@saved_share.case("the layers are the whole step", hint="What is saved, divided by the time before.")
def _(saved_share):
    _expect_share(saved_share, _pair(200.0, 150.0), 0.25)


@saved_share.case("a third", hint="Return the share as it is: do not round it.")
def _(saved_share):
    _expect_share(saved_share, _pair(300.0, 200.0), 1 / 3)


@saved_share.case("half of the step is something else", hint="The whole is the layers before the change, and the rest.")
def _(saved_share):
    _expect_share(saved_share, _pair(200.0, 150.0), 0.125, rest_us=200.0)


@saved_share.case("nearly all is something else")
def _(saved_share):
    _expect_share(saved_share, _pair(100.0, 50.0), 0.05, rest_us=900.0)


@saved_share.case("one layer and a model's layers", hint="Take the row with the most layers: a step runs all of them.")
def _(saved_share):
    rows = _pair(80.0, 20.0, layers=1) + _pair(2000.0, 1500.0)
    _expect_share(saved_share, rows, 0.2, rest_us=500.0)
    _expect_share(saved_share, rows[::-1], 0.2, rest_us=500.0)


@saved_share.case(
    "36 layers",
    hint="The number of layers is in the rows.",
    hint_for=(ValueError, KeyError, IndexError, StopIteration),
)
def _(saved_share):
    _expect_share(saved_share, _pair(90.0, 30.0, layers=1) + _pair(3000.0, 2400.0, layers=36), 0.2)


@saved_share.case("graph and eager", hint="Take the rows of the mode that was asked for.")
def _(saved_share):
    rows = _pair(8000.0, 2000.0, mode="eager") + _pair(1000.0, 900.0) + _pair(50.0, 20.0, layers=1, mode="eager")
    _expect_share(saved_share, rows, 0.1)
    _expect_share(saved_share, rows, 0.6, mode="eager", rest_us=2000.0)


@saved_share.case("several numbers of tokens", hint="Take the rows of the number of tokens that was asked for.")
def _(saved_share):
    rows = _pair(1000.0, 500.0) + _pair(2000.0, 1800.0, tokens=16) + _pair(4000.0, 3960.0, tokens=64)
    for tokens, expected in ((1, 0.5), (16, 0.1), (64, 0.01)):
        _expect_share(saved_share, rows, expected, tokens=tokens)


@saved_share.case("other ways", hint="`before` and `after` name the ways.")
def _(saved_share):
    rows = [*_pair(1200.0, 1000.0), _row(24, 1, "route", "graph", 750.0)]
    _expect_share(saved_share, rows, 0.2, ways=("reuse", "route"), rest_us=250.0)
    _expect_share(saved_share, rows, 0.375, ways=("rebuild", "route"))


@saved_share.case("a change that costs", hint="A slower way has a negative share.")
def _(saved_share):
    _expect_share(saved_share, _pair(1000.0, 750.0), -0.25, ways=("reuse", "rebuild"), rest_us=250.0)


@saved_share.case(
    "a way that was not measured",
    hint="Raise ValueError with the name of the way, when no row fits.",
    hint_for=LACKS,
)
def _(saved_share):
    rows = _pair(1000.0, 750.0) + [_row(24, 4, "legacy", "graph", 700.0)]
    expect_raises(saved_share, ValueError, rows, "reuse", "legacy", 1, "graph", 0.0, mentions=("legacy",))


@saved_share.case(
    "the way before was not measured",
    hint="Raise ValueError for either way, with its name.",
    hint_for=LACKS,
)
def _(saved_share):
    rows = _pair(1000.0, 750.0) + [_row(24, 4, "legacy", "graph", 700.0)]
    expect_raises(saved_share, ValueError, rows, "legacy", "reuse", 1, "graph", 0.0, mentions=("legacy",))


@saved_share.case(
    "a way that was measured for one layer only",
    hint="Take the most layers of all rows, not of each way: one layer is not comparable to 24. Raise ValueError.",
    hint_for=LACKS,
)
def _(saved_share):
    rows = _pair(1000.0, 750.0) + [_row(1, 1, "legacy", "graph", 30.0)]
    expect_raises(saved_share, ValueError, rows, "reuse", "legacy", 1, "graph", 0.0, mentions=("legacy",))


@saved_share.case(
    "tokens that were measured for one layer only",
    hint="Find the most layers first, of all rows: a step runs them all. Raise ValueError if no row is left.",
    hint_for=LACKS,
)
def _(saved_share):
    rows = _pair(1000.0, 750.0) + _pair(100.0, 95.0, layers=1, tokens=16)
    expect_raises(saved_share, ValueError, rows, "rebuild", "reuse", 16, "graph", 0.0, mentions=())
