"""The checkers of `46__what_parity_misses`."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gptoss_lab.course.check import Checker, Errors, Mismatch, expect_equal, expect_raises
from gptoss_lab.course.describe import kind_of, show
from gptoss_lab.course.lessons.stand_ins_46 import (
    Arrays,
    block_sizes,
    exchanged_experts,
    exchanged_rows,
    exchanged_sizes,
    first_block_again,
    last_block_lost,
    lay_out,
    part,
    picks,
    shifted_offsets,
    slot_twice,
    weight_of_the_last_row,
)

check_routing = Checker(
    "46.1",
    "check_routing",
    may_be_none=True,
    done="It shares no step with the code that it checks, and every planted fault is seen.",
)


def healthy(label: str, ids: np.ndarray, weights: np.ndarray, slices: int, hint: str = "") -> None:
    """Declare a case whose layout must be accepted. A hint is about lengths, too, which NumPy may refuse."""

    @check_routing.case(label, hint=hint, hint_for=(ValueError, IndexError))
    def _(check_routing: Callable) -> None:
        found = check_routing(lay_out(ids, weights, slices), ids, weights)
        if found is not None:
            raise Mismatch(f"a right routing was rejected with {show(found)}, expected None")


def planted(label: str, change: Callable[[Arrays], Arrays], tokens: int = 33, hint: str = "") -> None:
    """Declare a case whose layout has a fault; `change` returns the arrays to replace."""
    ids, weights = picks(tokens, 20, seed=tokens)

    @check_routing.case(f"planted: {label}", hint=hint)
    def _(check_routing: Callable) -> None:
        arrays = lay_out(ids, weights, 32)
        found = check_routing(arrays | change(arrays), ids, weights)
        if not isinstance(found, str) or not found.strip():
            said = f"returned {show(found)} for a routing with a fault ({label}), expected a sentence"
            raise Mismatch(said, kinds=None if isinstance(found, str) else (kind_of(found), "str"))


healthy("33 tokens", *picks(33, 32, seed=0), 32)
healthy("one token", *picks(1, 32, seed=1), 32)
healthy("experts that nobody picked", *picks(33, 9, seed=2), 32, hint="Count with a minimum length of all slices.")
healthy("24 experts", *picks(33, 24, seed=3), 24, hint="The number of slices is len(arrays['slice_sizes']).")
healthy("24 experts in 32 slices", *picks(5, 24, seed=4), 32, hint="The last slices may be empty padding.")
_ids, _weights = picks(4, 32, seed=5)
_weights[2] = np.nan
healthy("a token with weights of NaN", _ids, _weights, 32, hint="NaN is not equal to itself: pass equal_nan=True.")

planted(
    "weights by the inverse order",
    lambda a: {"gate_scal": a["gate_scal"][a["row_sorted_indx"]][a["row_sorted_indx"]]},
    hint="The weight of row r is that of slot col_sorted_indx[r].",
)
planted("the last row's weight halved", weight_of_the_last_row, hint="Compare every row, not only the first ones.")
planted(
    "the two orders exchanged",
    lambda a: {"col_sorted_indx": a["row_sorted_indx"], "row_sorted_indx": a["col_sorted_indx"]},
    hint="Inverse to each other they are still. Is each row's expert the right one?",
)
planted("one order for both ways", lambda a: {"row_sorted_indx": a["col_sorted_indx"]})
planted("a slot twice, another lost", slot_twice, hint="Each slot stands at exactly one row.")
planted("two rows of an expert exchanged", exchanged_rows, hint="Among equals the order is by slot: a stable sort.")
planted("rows of two experts exchanged", exchanged_experts, hint="The experts of the rows must ascend.")
planted("offsets of the next expert", shifted_offsets, tokens=1)
planted("sizes of two experts exchanged", exchanged_sizes, hint="The sum is right. Count the ids of each expert.")
planted("always block 0", first_block_again, hint="Expert 0 has 33 rows here: blocks 0, 1 and 2.")
planted("the last block lost", last_block_lost, hint="The schedule covers every row of every expert.")


entered = Checker("46.2", "entered", may_change=(1,), done="It proves what ran, and leaves no trace.")


def stand_in(**functions: Callable) -> SimpleNamespace:
    """Something with functions as attributes, as a module has."""
    return SimpleNamespace(**functions)


@entered.case("it is called")
def _(entered):
    module = stand_in(new=lambda: "new", old=lambda: "old")
    expect_equal(entered(lambda: module.new(), module, "new"), True)


@entered.case("another branch is taken", hint="Only a call counts, not that the function exists.")
def _(entered):
    module = stand_in(new=lambda: "new", old=lambda: "old")
    expect_equal(entered(lambda: module.old(), module, "new"), False)


@entered.case("first this branch, then that one", hint="Nothing may be left of the last call.")
def _(entered):
    module = stand_in(new=lambda: "new", old=lambda: "old")
    seen = [entered(lambda name=name: getattr(module, name)(), module, "new") for name in ("new", "old", "new")]
    expect_equal(seen, [True, False, True])


@entered.case("fn is called once", hint="Call `fn()` while the sentinel stands, and not again.")
def _(entered):
    calls = []
    expect_equal(entered(lambda: calls.append(1), stand_in(new=len), "new"), False)
    expect_equal(len(calls), 1, "the number of calls of fn")


@entered.case(
    "the function still does its work",
    hint="Hand all arguments on, also named ones, and return the result.",
    hint_for=TypeError,
)
def _(entered):
    module, results = stand_in(new=lambda a, *, b: a - b), []
    expect_equal(entered(lambda: results.append(module.new(7, b=3)), module, "new"), True)
    expect_equal(results, [4], "what fn got from the function")


@entered.case("the function is back afterwards", hint="Keep the original, and put it back with setattr.")
def _(entered):
    def new() -> None:
        pass

    module = stand_in(new=new)
    entered(lambda: module.new(), module, "new")
    expect_equal(module.new is new, True, "whether module.new is the function itself")
    expect_equal(sorted(vars(module)), ["new"], "the names in the module")


@entered.case("fn raises", hint="Put the original back in `finally`, and let the error through.")
def _(entered):
    def new() -> None:
        pass

    module = stand_in(new=new)
    expect_raises(entered, ZeroDivisionError, lambda: 1 / 0, module, "new")
    expect_equal(module.new is new, True, "whether module.new is the function itself after an error")


@entered.case("the function raises, and fn carries on", hint="Note the call when it begins, not when it has returned.")
def _(entered):
    def new() -> None:
        raise KeyError("not there")

    module = stand_in(new=new)

    def falls_back() -> None:
        try:
            module.new()
        except KeyError:
            pass

    expect_equal(entered(falls_back, module, "new"), True)


@entered.case("the function is called by another one")
def _(entered):
    module = stand_in(new=lambda: None)
    module.forward = lambda: module.new()
    expect_equal(entered(lambda: module.forward(), module, "new"), True)


first_difference = Checker(
    "46.3", "first_difference", may_be_none=True, done="What it cannot compare, it does not pass."
)


def difference_case(label: str, a: Any, b: Any, expected: tuple | None, hint: str = "", hint_for: Errors = ()) -> None:
    """Declare a case: the first difference of a and b is `expected`, in both directions."""

    @first_difference.case(label, hint=hint, hint_for=hint_for)
    def _(first_difference: Callable) -> None:
        expect_equal(first_difference(a, b), expected, "the first difference")
        expect_equal(first_difference(b, a), expected, "the first difference the other way round")


difference_case("equal, down to the leaves", part(), part(), None)
difference_case("another value", part(), part(sizes=(1, 0, 3)), ("ragged", "sizes"))
difference_case("of several the first", part(), part(sizes=(0, 0, 3), n_experts=4), ("ragged", "sizes"))
difference_case(
    "another dtype",
    part(),
    part(gate=torch.tensor([0.5, 0.25]).bfloat16()),
    ("gate_scal",),
    hint="Equal values in another dtype are a difference: compare `dtype` before you compare values.",
)
difference_case(
    "another shape",
    part(gate=torch.ones(3)),
    part(gate=torch.ones(1, 3)),
    ("gate_scal",),
    hint="`==` broadcasts [3] against [1, 3]: compare `shape` before you compare values.",
)
difference_case("empty tensors of two shapes", torch.zeros(0, 4), torch.zeros(0), (), hint="Nothing differs in value.")
difference_case(
    "NaN in the same place",
    part(gate=(math.nan, 1.0)),
    part(gate=(math.nan, 1.0)),
    None,
    hint="NaN is not equal to itself: (a == b) | ((a != a) & (b != b)).",
)
difference_case("NaN against a number", part(gate=(math.nan, 1.0)), part(gate=(2.0, 1.0)), ("gate_scal",))
difference_case("NaN as a plain float", {"score": float("nan")}, {"score": float("nan")}, None)
difference_case(
    "None against a tensor",
    part(gate=None),
    part(),
    ("gate_scal",),
    hint="Compare the types first of all.",
    hint_for=(AttributeError, TypeError),
)
difference_case("None against None", part(gate=None), part(gate=None), None)
difference_case(
    "one function, twice",
    part(block_sizes=block_sizes),
    part(block_sizes=block_sizes),
    ("ragged", "block_sizes"),
    hint="The same function on both sides says nothing about the data. It cannot be compared, so it is a difference.",
)
difference_case(
    "a type that is not in the list",
    {"a": 1, "b": (range(3),)},
    {"a": 1, "b": (range(3),)},
    ("b", 0),
    hint="End with a difference, not with `==`: only types that you know may pass.",
)
difference_case("True against 1", [1, 1], [1, True], (1,), hint="`type(a) is type(b)` tells them apart.")
difference_case("1 against 1.0", {"n": 1}, {"n": 1.0}, ("n",))
difference_case("a list against a tuple", [[1]], [(1,)], (0,))
difference_case("one item more", {"a": [1, 2]}, {"a": [1, 2, 3]}, ("a",), hint="`zip` stops at the shorter one.")
difference_case("a key more", [{"a": 1}], [{"a": 1, "b": 2}], (0,), hint="Compare the sets of keys.", hint_for=KeyError)
difference_case("nothing in them", [[], {}, ()], [[], {}, ()], None)
