"""The checkers of `20__ownership`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gptoss_lab.course.check import Checker, Mismatch, expect_equal, expect_raises
from gptoss_lab.course.lessons.check_owning_20 import own_by_memory
from gptoss_lab.course.lessons.patients_20 import put_together
from gptoss_lab.course.lessons.prices_20 import Price
from gptoss_lab.course.lessons.stand_ins_18 import Lender
from gptoss_lab.course.lessons.stand_ins_20 import Halves, expect_ran
from gptoss_lab.weights.cases import Parameters
from gptoss_lab.weights.compare import differing

__all__ = ["load_bf16", "load_quark", "own_by_memory"]

load_quark = Checker("20.1", "load_quark", done="Only what waits is copied, and the price is told.")

EXPERT = "model.layers.{}.mlp.experts.{}.gate_up_proj.weight"
NORM, ROUTER = "model.layers.{}.input_layernorm.weight", "model.layers.{}.mlp.router.weight"
MIXED = [
    NORM.format(0),
    EXPERT.format(0, 0),
    EXPERT.format(0, 1),
    ROUTER.format(0),
    EXPERT.format(1, 0),
    NORM.format(1),
]
ONLY_EXPERTS = [EXPERT.format(layer, expert) for layer in (0, 1) for expert in (0, 1)]
ONLY_OTHERS = [NORM.format(0), ROUTER.format(0), NORM.format(1)]


@load_quark.case("only experts", hint="Hand `load_experts` a generator: a list drains the stream first.")
def _(load_quark):
    halves = Halves(ONLY_EXPERTS).run(load_quark)
    expect_equal(halves.experts, halves.stored, "the experts as they were read")


@load_quark.case("only others", hint="Own what waits as it comes: `lend` around the stream, `own` around the tensor.")
def _(load_quark):
    halves = Halves(ONLY_OTHERS).run(load_quark)
    expect_equal(halves.normal, halves.stored, "the others as they were read")


@load_quark.case("mixed, in a reused buffer", hint="Own a tensor when it arrives, before the stream goes on.")
def _(load_quark):
    halves = Halves(MIXED).run(load_quark)
    expect_equal(halves.experts, {MIXED[i]: halves.stored[MIXED[i]] for i in (1, 2, 4)}, "the experts")
    expect_equal(halves.normal, {MIXED[i]: halves.stored[MIXED[i]] for i in (0, 3, 5)}, "the others")


@load_quark.case("each expert is read as it arrives", hint="Hand `load_experts` a generator, not a list.")
def _(load_quark):
    halves = Halves(MIXED).run(load_quark)
    expect_equal(halves.seen, [2, 3, 5], "how many tensors were produced when each expert was read")


@load_quark.case("names that look like experts", hint="`QUARK_EXPERT.search(name)` tells: number, projection, suffix.")
def _(load_quark):
    prefix = "model.layers.0.mlp.experts."
    names = [prefix + "gate_up_proj_bias", prefix + "3.gate_up_proj.zero_point", prefix + "norm.weight"]
    halves = Halves([*names, prefix + "3.down_proj.input_scale"]).run(load_quark)
    expect_equal(set(halves.normal), set(names), "the others")
    expect_equal(list(halves.experts), [prefix + "3.down_proj.input_scale"], "the experts")


@load_quark.case("each half is called once, experts first")
def _(load_quark):
    for names in (MIXED, []):
        expect_equal(Halves(names).run(load_quark).calls, ["experts", "normal"], "the calls")


@load_quark.case(
    "an expert half that stops early", hint="Take what it left in the generator: `collections.deque(stream, maxlen=0)`."
)
def _(load_quark):
    halves = Halves(MIXED, stop_after=1).run(load_quark)
    expect_equal(list(halves.experts), [MIXED[1]], "the experts")
    expect_equal(halves.normal, {MIXED[i]: halves.stored[MIXED[i]] for i in (0, 3, 5)}, "the others")


@load_quark.case("the price", hint="Return the bytes of the tensors that you owned: add up `tensor.nbytes`.")
def _(load_quark):
    for dtype in (torch.bfloat16, torch.float32, torch.uint8):
        for names, owned in ((MIXED, 24), (ONLY_EXPERTS, 0), (ONLY_OTHERS, 24), ([], 0)):
            returned = Halves(names, dtype=dtype).run(load_quark).returned
            expect_equal(returned, owned, "the bytes that it says it copied")


@load_quark.cost("only what waits is copied, once", hint="An expert is used at once and needs no copy.")
def _(load_quark):
    for names, needed in ((MIXED, 24), (ONLY_EXPERTS, 0)):
        with Price() as price:
            Halves(names).run(load_quark)
        if price.bytes > needed:
            raise Mismatch(f"{price.bytes} bytes were copied, {needed} are enough")


load_bf16 = Checker("20.2", "load_bf16", done="Nothing waits but the first half of a pair.")

SHAPES = {
    "blocks": ("block.{}.mlp.mlp1_weight.blocks", (2, 1, 16)),
    "scales": ("block.{}.mlp.mlp1_weight.scales", (2, 1)),
    "qkv": ("block.{}.attn.qkv.weight", (12, 2)),
    "out": ("block.{}.attn.out.weight", (8, 2)),
    "norm": ("block.{}.attn.norm.scale", (16,)),
}


def _stored(*order: tuple[int, str]) -> dict[str, torch.Tensor]:
    """Tensors of the original format in an order: each is (layer, its kind)."""
    made = {}
    for place, (layer, kind) in enumerate(order):
        name, shape = SHAPES[kind]
        values = torch.arange(torch.Size(shape).numel()).reshape(shape) + 7 * place
        packed = kind in ("blocks", "scales")
        made[name.format(layer)] = (values % 100 + 100).to(torch.uint8) if packed else values.bfloat16()
    return made


def _load(load: Callable, tensors: dict[str, torch.Tensor], limit: int = 64) -> Price:
    """Load from a reused buffer; compare every parameter; return what was copied."""
    lender, expected = Lender(tensors, limit), put_together(tensors)
    model, price = Parameters(expected), Price()
    with price:
        expect_ran(load(model, lender.weights()))
    wrong = differing(expected, model.tensors)
    if wrong:
        raise Mismatch(f"{len(wrong)} of {len(expected)} parameters are wrong, the first is {wrong[0]!r}")
    if not lender.ended:
        raise Mismatch(f"{lender.produced} of {len(tensors)} tensors were asked for: take the stream to its end")
    return price


def _what_waits(order: list[tuple[int, str]]) -> tuple[int, int]:
    """Bytes of all halves that have to wait, and the most that wait at once."""
    tensors, waiting, total, most = _stored(*order), {}, 0, 0
    for (layer, kind), tensor in zip(order, tensors.values(), strict=True):
        if kind in ("blocks", "scales") and waiting.pop(layer, None) is None:
            waiting[layer] = tensor.nbytes
            total += tensor.nbytes
            most = max(most, sum(waiting.values()))
    return total, most


ORDERS = {
    "blocks, then scales": [(0, "blocks"), (0, "norm"), (0, "out"), (0, "scales"), (1, "blocks"), (1, "scales")],
    "scales, then blocks": [(0, "scales"), (0, "norm"), (0, "out"), (0, "blocks"), (1, "scales"), (1, "blocks")],
    "several pairs wait": [*((i, "blocks") for i in range(3)), (2, "scales"), (0, "scales"), (1, "scales")],
    "q, k and v": [(0, "qkv"), (0, "out"), (1, "qkv"), (1, "norm"), (2, "qkv")],
    "no pairs": [(0, "out"), (1, "out"), (0, "norm"), (1, "norm")],
    "nothing": [],
}
HINTS = {
    "blocks, then scales": "Own the half that waits when it comes: `lend` around the stream, `own` around the tensor.",
    "scales, then blocks": "Either half may come first; `dequantise` takes the blocks first.",
    "several pairs wait": "Several pairs may wait at once: keep them in a dict by their key.",
    "q, k and v": "`copy_all(model, parts(name, tensor))` puts the name right and cuts a qkv.",
    "no pairs": "What is no half goes into the model at once.",
}
for _label, _order in ORDERS.items():

    @load_bf16.case(_label, hint=HINTS.get(_label, ""))
    def _(load_bf16, order=_order):
        _load(load_bf16, _stored(*order))


@load_bf16.case("a buffer for everything", hint="Nothing is overwritten here: look at names, and at what is made.")
def _(load_bf16):
    _load(load_bf16, _stored(*ORDERS["blocks, then scales"]), limit=4096)


@load_bf16.case("a half alone", hint="When the stream has ended and something waits, raise a ValueError that names it.")
def _(load_bf16):
    for kind in ("blocks", "scales"):
        tensors = _stored((0, "blocks"), (0, "scales"), (1, kind))
        name = SHAPES[kind][0].format(1)
        lender = Lender(tensors, 64)
        model = Parameters(put_together(_stored((0, "blocks"), (0, "scales"))))
        expect_raises(load_bf16, ValueError, model, lender.weights(), mentions=(name,))


@load_bf16.cost("only what waits is copied", hint="The second half, and what is no half, are used at once.")
def _(load_bf16):
    for label, order in ORDERS.items():
        needed, _ = _what_waits(order)
        price = _load(load_bf16, _stored(*order))
        if price.bytes > needed:
            raise Mismatch(f"'{label}': {price.bytes} bytes were copied, {needed} are enough")


@load_bf16.cost("a copy is let go when its pair is made", hint="`pop` the half that waited, and keep it nowhere else.")
def _(load_bf16):
    order = [(layer, kind) for layer in range(4) for kind in ("blocks", "scales", "norm")]
    _, most = _what_waits(order)
    price = _load(load_bf16, _stored(*order))
    if price.peak > 2 * most:  # a loop's variable may hold the one before
        raise Mismatch(f"copies of {price.peak} bytes were held at once, {most} wait at most")
