"""The checkers of exercises 18.2 and 18.3: a half that waits for its other half."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gptoss_lab.course.check import Checker, Mismatch
from gptoss_lab.course.lessons.stand_ins_18 import Lender, PlainCopies
from gptoss_lab.weights.cases import FUSED, KV_A, Q_A, Parameters, expected_parameters
from gptoss_lab.weights.compare import differing

load_pairs = Checker("18.2", "load_pairs", done="Only the half that waits is copied.")
load_scaled = Checker("18.3", "load_scaled", done="Right in both orders, and only what waits is copied.")


def _halves(*order: tuple[int, str]) -> dict[str, torch.Tensor]:
    """Tensors of pairs in an order: each is (layer, its kind)."""
    names = {"kv": KV_A, "q": Q_A, "o": "self_attn.o_proj.weight"}
    rows = {"kv": 2, "q": 3, "o": 4}
    return {
        f"layers.{layer}.{names[kind]}": torch.arange(rows[kind] * 4.0).reshape(-1, 4) + 100 * layer + place
        for place, (layer, kind) in enumerate(order)
    }


def _scaled(*order: tuple[int, str]) -> dict[str, torch.Tensor]:
    """Weights (I8), their scales (F32) and a norm, in an order."""
    made = {}
    for place, (layer, kind) in enumerate(order):
        if kind == "norm":
            made[f"layers.{layer}.input_layernorm.weight"] = torch.full((4,), float(place + 1))
            continue
        name = f"layers.{layer}.mlp.experts.weight"
        if kind == "scale":
            made[name + "_scale"] = torch.arange(1.0, 5.0) + place
        else:
            made[name] = torch.arange(16, dtype=torch.int8).reshape(4, 4) + place
    return made


def _expect_loaded(load: Callable, tensors: dict[str, torch.Tensor], case: str, limit: int) -> PlainCopies:
    """Load from a reused buffer; compare every parameter; return the copies."""
    lender, expected = Lender(tensors, limit), expected_parameters(tensors, case)
    model, copies = Parameters(expected), PlainCopies()
    with copies:
        load(model, lender.weights())
    wrong = differing(expected, model.tensors)
    if wrong:
        raise Mismatch(f"{len(wrong)} of {len(expected)} parameters are wrong, the first is {wrong[0]!r}")
    if not lender.ended:
        raise Mismatch(f"{lender.produced} of {len(tensors)} tensors were asked for: take the stream to its end")
    return copies


def _first_halves(tensors: dict[str, torch.Tensor], key: Callable[[str], str]) -> int:
    """The bytes of those tensors of pairs that come first."""
    first: dict[str, int] = {}
    for name, tensor in tensors.items():
        if name != key(name) or name + "_scale" in tensors:
            first.setdefault(key(name), tensor.nbytes)
    return sum(first.values())


PAIR_ORDERS = {
    "kv_a first": [(0, "kv"), (0, "o"), (0, "q"), (1, "kv"), (1, "o"), (1, "q")],
    "q_a first": [(0, "q"), (0, "o"), (0, "kv"), (1, "q"), (1, "o"), (1, "kv")],
    "side by side": [(0, "kv"), (0, "q"), (1, "q"), (1, "kv")],
    "all of one kind first": [(0, "kv"), (1, "kv"), (2, "kv"), (2, "q"), (0, "q"), (1, "q")],
    "no pairs": [(0, "o"), (1, "o"), (2, "o")],
}
PAIR_HINTS = {
    "kv_a first": "Own the half that waits when it comes: `lend` around the stream, `own` around the tensor.",
    "q_a first": "Either half can be the one that waits. `q_a` comes first in the fused tensor, always.",
    "all of one kind first": "Several layers may wait at once.",
}
for _label, _order in PAIR_ORDERS.items():

    @load_pairs.case(_label, hint=PAIR_HINTS.get(_label, ""))
    def _(load_pairs, order=_order):
        _expect_loaded(load_pairs, _halves(*order), "pair_cache", 64)


@load_pairs.case("a buffer for everything", hint="Nothing is overwritten here: what comes out is in another order.")
def _(load_pairs):
    _expect_loaded(load_pairs, _halves(*PAIR_ORDERS["kv_a first"]), "pair_cache", 4096)


@load_pairs.cost("only what waits is copied", hint="The second half, and what is no half, are used at once.")
def _(load_pairs):
    for label in ("kv_a first", "q_a first", "all of one kind first", "no pairs"):
        tensors = _halves(*PAIR_ORDERS[label])
        copies = _expect_loaded(load_pairs, tensors, "pair_cache", 64)
        needed = _first_halves(tensors, lambda name: name.replace(KV_A, FUSED).replace(Q_A, FUSED))
        if copies.bytes > needed:
            raise Mismatch(f"'{label}': {copies.bytes} bytes were copied, {needed} are enough")


SCALE_ORDERS = {
    "the weight first": [(0, "weight"), (0, "norm"), (0, "scale"), (1, "weight"), (1, "norm"), (1, "scale")],
    "the scale first": [(0, "scale"), (0, "norm"), (0, "weight"), (1, "scale"), (1, "norm"), (1, "weight")],
    "both orders in one file": [(0, "weight"), (1, "scale"), (0, "norm"), (1, "norm"), (0, "scale"), (1, "weight")],
    "all weights, then all scales": [(i, "weight") for i in range(4)] + [(i, "scale") for i in range(4)],
    "all scales, then all weights": [(i, "scale") for i in range(4)] + [(i, "weight") for i in range(4)],
    "neither": [(0, "norm"), (1, "norm"), (2, "norm")],
}
SCALE_HINTS = {
    "the weight first": "Own what waits. `cases.dequantise(key, both)` makes the parameter of both.",
    "the scale first": "A scale can wait as well as a weight: own whichever comes first.",
    "neither": "A name without `.mlp.` goes into the model as it is.",
}
for _label, _order in SCALE_ORDERS.items():

    @load_scaled.case(_label, hint=SCALE_HINTS.get(_label, ""))
    def _(load_scaled, order=_order):
        _expect_loaded(load_scaled, _scaled(*order), "pending_scale", 32)


@load_scaled.cost("only what waits is copied", hint="The second of the two is used at once.")
def _(load_scaled):
    for label, order in SCALE_ORDERS.items():
        tensors = _scaled(*order)
        copies = _expect_loaded(load_scaled, tensors, "pending_scale", 32)
        needed = _first_halves(tensors, lambda name: name.removesuffix("_scale"))
        if copies.bytes > needed:
            raise Mismatch(f"'{label}': {copies.bytes} bytes were copied, {needed} are enough")
