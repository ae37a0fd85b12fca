"""The checkers of `16__the_fix`."""

from __future__ import annotations

import torch

from gptoss_lab.course.check import Checker, Mismatch, count_copies, expect_equal
from gptoss_lab.course.lessons.stand_ins_16 import (
    Loader,
    LoadsNormalFirst,
    NeedsGpu,
    OnDevice,
    ReadsAhead,
    Weights,
    expect_counts,
    expect_read,
)
from gptoss_lab.weights import hermetic
from gptoss_lab.weights.streaming import STREAMED

load_lazily = Checker("16.1", "load_lazily", done="Each expert is loaded before the next one is asked for.")

EXPERT, DENSE = "model.layers.{}.mlp.experts.down_proj_bias", "model.layers.{}.input_layernorm.weight"
MIXED = [DENSE.format(0), EXPERT.format(0), EXPERT.format(1), DENSE.format(1), EXPERT.format(2), DENSE.format(2)]


@load_lazily.case("only experts", hint="Hand `load_experts` a generator: a list drains the stream first.")
def _(load_lazily):
    names = [EXPERT.format(i) for i in range(3)]
    loader = Loader(names).run(load_lazily)
    expect_read(loader.experts, dict(zip(names, (0.0, 1.0, 2.0), strict=True)), "the experts as they were read")


@load_lazily.case(
    "only others", hint="`load_normal` gets the pairs that are not experts, owned. `weights` can be read once."
)
def _(load_lazily):
    names = [DENSE.format(i) for i in range(3)]
    loader = Loader(names).run(load_lazily)
    expect_read(loader.normal, dict(zip(names, (0.0, 1.0, 2.0), strict=True)), "the others as they were read")


@load_lazily.case("mixed, in a reused buffer", hint="Own a tensor when it arrives, before the stream goes on.")
def _(load_lazily):
    loader = Loader(MIXED).run(load_lazily)
    expect_read(loader.experts, {MIXED[1]: 1.0, MIXED[2]: 2.0, MIXED[4]: 4.0}, "the experts as they were read")
    expect_read(loader.normal, {MIXED[0]: 0.0, MIXED[3]: 3.0, MIXED[5]: 5.0}, "the others as they were read")
    expect_equal([*loader.experts, *loader.normal], [MIXED[i] for i in (1, 2, 4, 0, 3, 5)], "the order of loading")


@load_lazily.case("each expert is read as it arrives", hint="Hand `load_experts` a generator, not a list.")
def _(load_lazily):
    loader = Loader(MIXED).run(load_lazily)
    expect_equal(loader.seen, [2, 3, 5], "how many tensors were produced when each expert was read")


@load_lazily.case("each half is called once, experts first")
def _(load_lazily):
    loader = Loader(MIXED).run(load_lazily)
    expect_equal(loader.calls, ["experts", "normal"], "the calls")


@load_lazily.case("a name with 'expert' in it that is none", hint="The loader looks for `.experts.`, dots included.")
def _(load_lazily):
    others = ["model.expert_norm.weight", "model.experts_norm.weight", "model.shared_experts.weight"]
    loader = Loader([*others, EXPERT.format(0)]).run(load_lazily)
    expect_equal((list(loader.experts), list(loader.normal)), ([EXPERT.format(0)], others), "experts and others")


@load_lazily.case("no tensors", hint="Call both halves, whatever the stream holds.")
def _(load_lazily):
    loader = Loader([]).run(load_lazily)
    expect_equal((loader.experts, loader.normal), ({}, {}), "experts and others")
    expect_equal(loader.calls, ["experts", "normal"], "the calls")


@load_lazily.cost("`own` is called for the others alone, once each", hint="An expert needs no copy.")
def _(load_lazily):
    loader = Loader(MIXED).run(load_lazily)
    if not loader.owned:
        raise Mismatch("`own` was never called", "Call `own` for each pair that is not an expert.")
    expect_equal(loader.owned, [1, 4, 6], "how many tensors were produced at each call of `own`")


@load_lazily.cost("no other copy", hint="Yield the tensor itself, and keep what `own` returned.")
def _(load_lazily):
    loader = Loader(MIXED).run(load_lazily)
    expect_equal(loader.strangers, [], "what is neither the streamed tensor nor what `own` returned")


# Its stand-in for a device makes torch import sympy, which takes seconds the first time: hence the longer limit.
own = Checker("16.2", "own", done="It owns what is lent, and leaves alone what is given.", seconds=60)


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    setattr(tensor, STREAMED, True)
    return tensor


@own.case("a tensor that was given", hint="Return the object itself: no copy, no view.")
def _(own):
    whole, view, denied = torch.arange(4.0), torch.arange(4.0)[1:], torch.arange(4.0)
    setattr(denied, STREAMED, False)
    for tensor, what in (
        (whole, "a tensor without a mark"),
        (view, "a view without a mark"),
        (denied, "a mark of False"),
    ):
        result = own(tensor)
        expect_equal(result, tensor, what)
        if result is not tensor:
            raise Mismatch(f"{what} came back as another object, expected the same")


@own.case("a tensor that was lent", hint="`cpu()`, `contiguous()` and `detach()` do not copy here.")
def _(own):
    tensor = _marked(torch.arange(4.0))
    result = own(tensor)
    tensor.fill_(-1)
    expect_equal(result, torch.arange(4.0), "the result after the buffer was overwritten")


@own.case("bytes and BF16", hint="NumPy knows no BF16: stay in PyTorch.", hint_for=TypeError)
def _(own):
    for dtype in (torch.uint8, torch.bfloat16):
        tensor = _marked(torch.arange(32).reshape(4, 8).to(dtype))
        result = own(tensor)
        tensor.fill_(0)
        expect_equal(result, torch.arange(32).reshape(4, 8).to(dtype))


@own.case("a strided view of the buffer")
def _(own):
    buffer = torch.arange(12.0).reshape(3, 4)
    result = own(_marked(buffer[:, 1:3]))
    buffer.zero_()
    expect_equal(result, torch.tensor([[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]]))


@own.case("a tensor with a gradient", hint="Detach: a weight that waits has no history.", hint_for=RuntimeError)
def _(own):
    result = own(_marked(torch.ones(3, requires_grad=True)))
    expect_equal((result.requires_grad, result.grad_fn is None), (False, True), "requires_grad, and no history")


@own.case("an empty tensor")
def _(own):
    expect_equal(own(_marked(torch.zeros(0, 3))), torch.zeros(0, 3))


# Without "cpu", torch asks for CUDA: a RuntimeError, or an AssertionError where it was built without.
@own.case(
    "a tensor on a device",
    hint='The copy belongs in host memory: `to("cpu", ...)`.',
    hint_for=(RuntimeError, AssertionError),
)
def _(own):
    expect_equal(own(_marked(OnDevice(torch.arange(4.0)))), torch.arange(4.0))


@own.cost("one copy", hint='`to("cpu", copy=True)` copies once. A `clone()` beside it is one too many.')
def _(own):
    tensor = _marked(torch.ones(4096)[:1024])
    with count_copies() as copies:
        own(tensor)
    if copies.allocated > tensor.nbytes:
        raise Mismatch(f"{copies.allocated} bytes were allocated for a tensor of {tensor.nbytes}")
    with count_copies() as copies:
        own(_marked(OnDevice(torch.ones(1024))))
    if copies.calls > 1:
        raise Mismatch(f"a tensor on a device was copied {copies.calls} times, expected once, straight to the host")


produced_when_seen = Checker("16.3", "produced_when_seen", done="It tells a draining loader from a lazy one.")


class Drains(NeedsGpu):
    def _load_weights_mxfp4(self, weights: Weights) -> None:
        hermetic.drain(weights, self._load_mxfp4_experts_weights, self._load_normal_weights)


class LoadsLazily(NeedsGpu):
    def _load_weights_mxfp4(self, weights: Weights) -> None:
        hermetic.load_lazily(
            weights, self._load_mxfp4_experts_weights, self._load_normal_weights, lambda tensor: tensor
        )


def _fresh(model_class: type) -> type:
    """A new class each time, so that what one answer does to it cannot help the next."""
    return type(model_class.__name__, (model_class,), {})


@produced_when_seen.case("a class that drains", hint="Count in the generator, just before each `yield`.")
def _(produced_when_seen):
    expect_counts(produced_when_seen(_fresh(Drains)), [3, 3, 3])


@produced_when_seen.case("a class that loads lazily", hint="The recorder loops over `weights` and notes the count.")
def _(produced_when_seen):
    expect_counts(produced_when_seen(_fresh(LoadsLazily)), [1, 2, 3])


@produced_when_seen.case("a class that reads one ahead")
def _(produced_when_seen):
    expect_counts(produced_when_seen(_fresh(ReadsAhead)), [2, 3, 3])


@produced_when_seen.case("the halves in the other order")
def _(produced_when_seen):
    expect_counts(produced_when_seen(_fresh(LoadsNormalFirst)), [1, 2, 3])


@produced_when_seen.case("twice in a row", hint="Every call starts from nothing: no counter outside the function.")
def _(produced_when_seen):
    model_class = _fresh(LoadsLazily)
    for call in ("first", "second"):
        expect_counts(produced_when_seen(model_class), [1, 2, 3], f"the result of the {call} call")


@produced_when_seen.case("the class is left as it was", hint="Replace the methods on the instance, not on the class.")
def _(produced_when_seen):
    model_class = _fresh(Drains)
    before = dict(vars(model_class))
    produced_when_seen(model_class)
    changed = sorted(name for name, value in vars(model_class).items() if before.get(name) is not value)
    if changed:
        raise Mismatch(f"the class has a new {', '.join(changed)}, expected a change of one instance alone")
