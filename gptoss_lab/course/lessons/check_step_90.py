"""The checkers of the decoding step in `90__on_your_own`. They give no hints: what was seen is all that is said."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from gptoss_lab.course.check import Checker, Mismatch, expect_equal
from gptoss_lab.course.lessons import step_90
from gptoss_lab.course.lessons.step_90 import Call, make_step
from gptoss_lab.moe.generations import interpreting
from gptoss_lab.moe.launches import launches

needless = Checker("90.3", "needless", done="What is left has to be computed.")


def _calls(text: str) -> list[Call]:
    """"add a b=c" for each call: the operation, its inputs, and the result."""  # fmt: skip
    calls = []
    for part in text.split(";"):
        (op, *inputs), result = part.split("=")[0].split(), part.split("=")[1].strip()
        calls.append(Call(f"aten.{op}", tuple(inputs), result))
    return calls


@needless.case("nothing twice")
def _(needless):
    expect_equal(needless([_calls("abs a=b; amax b=c; div c 127=d")]), [])


@needless.case("the same call on the same bytes")
def _(needless):
    expect_equal(needless([_calls("abs a=b; amax b=c; mul c a=d; abs a=b; amax b=c")]), [3, 4])


@needless.case("the same names on other bytes")
def _(needless):
    expect_equal(needless([_calls("abs a=b; amax b=c; abs d=e; amax e=f")]), [])


@needless.case("another number as argument")
def _(needless):
    expect_equal(needless([_calls("pow a 2=b; pow a 3=c; pow a 2=b")]), [2])


@needless.case("another way to the same result")
def _(needless):
    expect_equal(needless([_calls("add a a=b; mul a 2=b; add c a=d; mul e 4=b")]), [])


@needless.case("the inputs exchanged")
def _(needless):
    expect_equal(needless([_calls("sub a b=c; sub b a=d; sub a b=c")]), [2])


@needless.case("the same question, another answer")
def _(needless):
    expect_equal(needless([_calls("rand 4=a; rand 4=b"), _calls("rand 4=c; rand 4=d")]), [])


@needless.case("equal by chance in one of the runs")
def _(needless):
    runs = [_calls("cos a=b; cos a=b; cos a=b"), _calls("cos c=d; cos e=f; cos c=d")]
    expect_equal(needless(runs), [2])
    expect_equal(needless(runs[::-1]), [2])


@needless.case("equal to another call in each run")
def _(needless):
    expect_equal(needless([_calls("cos a=b; cos c=d; cos a=b"), _calls("cos a=b; cos c=d; cos c=d")]), [])


@needless.case("no calls")
def _(needless):
    expect_equal(needless([[], []]), [])


@needless.case("the real step, two layers and three")
def _(needless):
    for bases in ((1e4, 1e4), (1e4, 1e6, 1e4)):
        runs = [step_90.record(lambda a=a: step_90.decode_step(*a)) for a in _inputs(bases)]
        found = needless(runs)
        expect_equal(len(found), _repeats(bases), f"how many calls of {len(bases)} layers are needless")


decode_step = Checker("90.4", "decode_step", done="The same bits, and each thing computed once.", seconds=30.0)


def _repeats(bases: tuple[float, ...]) -> int:
    """Two and one more quantisations of five calls a layer, tables of six, and `arange` once for all of them."""
    tables = len(set(bases))
    return 15 * len(bases) + 6 * (2 * len(bases) - tables) + max(0, tables - 1)


def _inputs(bases: tuple[float, ...]) -> list[tuple[Any, ...]]:
    device = "cuda" if torch.cuda.is_available() and not interpreting() else "cpu"
    return [make_step(bases, seed, at, device) for seed, at in ((0, 5), (1, 9))]


def _expect_step(learner: Callable, x: torch.Tensor, position: torch.Tensor, layers: list, what: str) -> None:
    expected = step_90.decode_step(x, position, layers)
    expect_equal(learner(x, position, layers), expected, what, bitwise=True)


LOCAL, GLOBAL = 1e4, 1e6


@decode_step.case("one layer")
def _(decode_step):
    for inputs in _inputs((LOCAL,)):
        _expect_step(decode_step, *inputs, "the result")


@decode_step.case("three layers of one kind")
def _(decode_step):
    for inputs in _inputs((LOCAL,) * 3):
        _expect_step(decode_step, *inputs, "the result")


@decode_step.case("layers of two kinds")
def _(decode_step):
    for bases in ((LOCAL, GLOBAL), (LOCAL, LOCAL, GLOBAL, LOCAL), (GLOBAL, LOCAL, GLOBAL)):
        for inputs in _inputs(bases):
            _expect_step(decode_step, *inputs, f"the result with the bases {bases}")


@decode_step.case("no layers")
def _(decode_step):
    for inputs in _inputs(()):
        _expect_step(decode_step, *inputs, "the result")


@decode_step.case("one position after another")
def _(decode_step):
    x, position, layers = _inputs((LOCAL, GLOBAL))[0]
    for _ in range(3):
        _expect_step(decode_step, x, position, layers, f"the result at position {int(position)}")
        position += 1  # in place: the same object at the next token


@decode_step.case("another state in the same memory")
def _(decode_step):
    x, position, layers = _inputs((LOCAL, LOCAL))[0]
    for _ in range(2):
        _expect_step(decode_step, x, position, layers, "the result")
        x.mul_(-0.5)


@decode_step.case("other weights in the same memory")
def _(decode_step):
    x, position, layers = _inputs((LOCAL, LOCAL))[0]
    for _ in range(2):
        _expect_step(decode_step, x, position, layers, "the result")
        for weight in (layers[0].q, layers[0].up, layers[1].k, layers[1].gate):
            weight.mul_(1.5)


@decode_step.case("another base in the same layer")
def _(decode_step):
    x, position, layers = _inputs((LOCAL, LOCAL))[0]
    _expect_step(decode_step, x, position, layers, "the result")
    layers[1].base = GLOBAL
    _expect_step(decode_step, x, position, layers, "the result with the new base")


@decode_step.cost("no call that repeats another")
def _(decode_step):
    learners = inspect.unwrap(decode_step)  # the checker's snapshots of the inputs would be counted, too
    for bases in ((LOCAL,), (LOCAL,) * 4, (LOCAL, GLOBAL) * 2):
        inputs = _inputs(bases)[0]
        before = len(launches(lambda inputs=inputs: step_90.decode_step(*inputs)))
        now, enough = len(launches(lambda inputs=inputs: learners(*inputs))), before - _repeats(bases)
        if now > enough:
            kinds = f"layers: {len(bases)}, rotary bases: {len(set(bases))}"
            raise Mismatch(f"{kinds}; {now} launches, {before} before, and {enough} are enough")
