"""The checkers of lesson 16 tell wrong answers apart, and agree with the package's loaders."""

from __future__ import annotations

import copy

import pytest
import torch

from gptoss_lab.course.lessons.lesson_16 import Drains, LoadsLazily, load_lazily, own, produced_when_seen
from gptoss_lab.weights import hermetic, loading
from gptoss_lab.weights.streaming import is_streamed


def lazily(expert=lambda name: ".experts." in name, hand=lambda t: t, keep=lambda own, t: own(t), finish=lambda n: n):
    """An answer that is right but for what it takes for an expert, hands over, keeps, or gives in the end."""

    def answer(weights, load_experts, load_normal, own):
        normal = []

        def experts():
            for name, tensor in weights:
                if expert(name):
                    yield name, hand(tensor)
                else:
                    normal.append((name, keep(own, tensor)))

        load_experts(experts())
        load_normal(finish(normal))

    return answer


def drains(weights, load_experts, load_normal, own):
    hermetic.drain(weights, load_experts, load_normal)


def owns_everything_first(weights, load_experts, load_normal, own):
    hermetic.drain([(name, own(tensor)) for name, tensor in weights], load_experts, load_normal)


def lists_the_experts(weights, load_experts, load_normal, own):
    hermetic.load_lazily(weights, lambda experts: load_experts(list(experts)), load_normal, own)


def one_call_each(weights, load_experts, load_normal, own):
    normal = []
    for name, tensor in weights:
        if ".experts." in name:
            load_experts([(name, tensor)])
        else:
            normal.append((name, own(tensor)))
    load_normal(normal)


def normal_first(weights, load_experts, load_normal, own):
    normal, experts = [], []
    for name, tensor in weights:
        (experts if ".experts." in name else normal).append((name, own(tensor)))
    load_normal(normal)
    load_experts(experts)


def reads_one_ahead(weights, load_experts, load_normal, own):
    def ahead():
        held = None
        for pair in weights:
            if held:
                yield held
            held = pair
        if held:
            yield held

    hermetic.load_lazily(ahead(), load_experts, load_normal, own)


def owns_in_the_end(weights, load_experts, load_normal, own):
    def owned(normal):
        load_normal([(name, own(tensor)) for name, tensor in normal])

    hermetic.load_lazily(weights, load_experts, owned, lambda tensor: tensor)


def forgets_the_others(weights, load_experts, load_normal, own):
    load_experts((name, tensor) for name, tensor in weights if ".experts." in name)
    load_normal([])


def nothing_if_there_is_nothing(weights, load_experts, load_normal, own):
    hermetic.load_lazily(weights, load_experts, lambda normal: normal and load_normal(normal), own)


def waits_with_next(weights, load_experts, load_normal, own):
    def experts():
        while True:
            name, tensor = next(weights)
            if ".experts." in name:
                yield name, tensor

    load_experts(experts())


def yields_itself(weights, load_experts, load_normal, own):
    normal = []
    for name, tensor in weights:
        if ".experts." in name:
            yield name, tensor
        else:
            normal.append((name, own(tensor)))
    load_normal(normal)


def owns_for_show(own, tensor):
    own(tensor)
    return tensor.clone()


LOAD_LAZILY = {
    "does nothing": (lambda *_: None, "case 'only experts': the experts as they were read lacks"),
    "the defect": (drains, "before it was read, the buffer was overwritten with -1.0"),
    "lists the experts": (lists_the_experts, "a list drains the stream first"),
    "reads one ahead": (reads_one_ahead, "case 'only experts'"),
    "copies everything first": (owns_everything_first, "Hand `load_experts` a generator, not a list"),
    "a call for each expert": (one_call_each, "case 'each half is called once, experts first'"),
    "the other half first": (normal_first, "case 'each expert is read as it arrives'"),
    "forgets the others": (forgets_the_others, "`load_normal` gets the pairs that are not experts, owned"),
    "keeps views": (lazily(keep=lambda own, t: t), "case 'only others'"),
    "owns too late": (owns_in_the_end, "case 'only others'"),
    "any name with expert in it": (lazily(lambda name: "expert" in name), "The loader looks for `.experts.`"),
    "experts without the dots": (lazily(lambda name: "experts" in name), "The loader looks for `.experts.`"),
    "experts with one dot": (lazily(lambda name: "experts." in name), "The loader looks for `.experts.`"),
    "a generator itself": (yields_itself, "put the `yield` into an inner function"),
    "a copy, not `own`": (lazily(keep=lambda own, t: t.clone()), "Call `own` for each pair that is not an expert."),
    "experts by their ending": (lazily(lambda name: name.endswith(("_blocks", "_scales"))), "case 'only experts'"),
    "calls only if there is some": (nothing_if_there_is_nothing, "Call both halves, whatever the stream holds"),
    "the others in reverse": (lazily(finish=lambda normal: normal[::-1]), "the order of loading[3]"),
    "a generator that fails": (waits_with_next, "raised RuntimeError: generator raised StopIteration"),
    "names without tensors": (lazily(finish=lambda n: [name for name, _ in n]), "case 'only others'"),
    "copies the experts": (lazily(hand=torch.clone), "cost 'no other copy'"),
    "copies what is owned": (lazily(keep=lambda own, t: own(t).clone()), "keep what `own` returned"),
    "drops what is owned": (lazily(keep=owns_for_show), "keep what `own` returned"),
    "owns twice": (
        lazily(keep=lambda own, t: own(own(t))),
        "cost '`own` is called for the others alone, once each': how many tensors were produced",
    ),
}


def owner(copies, asks=is_streamed):
    """An answer that is right but for how it copies, or for whom."""
    return lambda tensor: copies(tensor) if asks(tensor) else tensor


def fills_the_source(tensor):
    mine = tensor.detach().to("cpu", copy=True)
    tensor.detach().zero_()
    return mine


OWN = {
    "never copies": (lambda tensor: tensor, "case 'a tensor that was lent'"),
    "always copies": (
        lambda tensor: tensor.detach().to("cpu", copy=True),
        "Return the object itself: no copy, no view",
    ),
    "by way of a device copy": (owner(lambda tensor: tensor.detach().clone().cpu()), "was copied 2 times"),
    "twice on the host": (owner(lambda tensor: tensor.detach().cpu().clone()), "was copied 2 times"),
    "a view for a copy": (owner(torch.Tensor.detach), "`cpu()`, `contiguous()` and `detach()` do not copy here"),
    "cpu() is no copy": (owner(lambda t: t.detach().cpu()), "case 'a tensor that was lent'"),
    "contiguous() is no copy": (owner(lambda t: t.detach().contiguous()), "case 'a tensor that was lent'"),
    "asks for a view, not the mark": (
        owner(lambda t: t.detach().to("cpu", copy=True), lambda t: t._base is not None or is_streamed(t)),
        "a view without a mark came back as another object",
    ),
    "asks if there is a mark": (
        owner(lambda t: t.detach().to("cpu", copy=True), lambda t: hasattr(t, "runai_streamed")),
        "a mark of False came back as another object",
    ),
    "the first cut": (owner(lambda t: t.detach().clone()), "has device cuda"),
    "does not wait for the device": (
        owner(lambda t: t.detach().to("cpu", copy=True, non_blocking=True)),
        "asked for with non_blocking=True",
    ),
    "does not wait in copy_": (
        owner(lambda t: torch.empty(t.shape, dtype=t.dtype).copy_(t.detach(), non_blocking=True)),
        "asked for with non_blocking=True",
    ),
    "stays on its device": (
        owner(lambda t: torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t.detach())),
        "The copy belongs in host memory",
    ),
    "keeps the history": (owner(lambda t: t.to("cpu", copy=True)), "Detach: a weight that waits has no history"),
    "by way of float32": (
        owner(lambda t: t.detach().to("cpu", torch.float32, copy=True)),
        "has dtype torch.float32, expected torch.uint8",
    ),
    "by way of NumPy": (owner(lambda t: torch.from_numpy(t.detach().numpy().copy())), "NumPy knows no BF16"),
    "by way of a list": (owner(lambda t: torch.tensor(t.tolist())), "case 'bytes and BF16'"),
    "without the shape": (
        owner(lambda t: t.detach().flatten().to("cpu", copy=True)),
        "has shape [32], expected [4, 8]",
    ),
    "clears what was lent": (owner(fills_the_source), "the function changed its input: `tensor`"),
    "returns nothing for a loan": (lambda t: None if is_streamed(t) else t, "the result after the buffer was"),
    "two copies": (owner(lambda t: t.detach().clone().to("cpu", copy=True)), "A `clone()` beside it is one too many"),
    "holds the whole buffer": (
        owner(lambda t: copy.deepcopy(t.detach()).cpu()),
        "bytes were allocated for a tensor of 4096",
    ),
}
EXPERTS = "model.layers.{}.mlp.experts.down_proj_bias"


def produced(
    make=object.__new__, name=EXPERTS, tensors=3, late=False, see=None, install=setattr, shared=None, hand=iter
):
    """An answer that is right but for how it makes the instance, streams, notes, or puts the recorder in place."""

    def answer(model_class):
        model = make(model_class)
        count, seen = shared or [0], []

        def stream():
            for layer in range(tensors):
                count[0] += not late
                yield name.format(layer), torch.full((4,), float(layer))
                count[0] += late

        def record(weights):
            if see:
                see(weights, seen, count)
            else:
                seen.extend(count[0] for _ in weights)

        install(model, "_load_mxfp4_experts_weights", record)
        install(model, "_load_normal_weights", lambda weights: None)
        model._load_weights_mxfp4(hand(stream()))
        return seen

    return answer


def on_the_class(model, name, function):
    setattr(type(model), name, lambda self, weights: function(weights))


def without_init(model_class):
    model_class.__init__ = lambda self: None
    return model_class()


def no_normal_half(model, name, function):
    if name != "_load_normal_weights":
        setattr(model, name, function)


def lists_first(weights, seen, count):
    seen.extend(count[0] for _ in list(weights))


def counts_what_it_sees(weights, seen, count):
    seen.extend(i for i, _ in enumerate(weights, start=1))


def after_the_loop(weights, seen, count):
    seen.append(sum(1 for _ in weights))


PRODUCED_WHEN_SEEN = {
    "a constant": (lambda model_class: [1, 2, 3], "It returned [1, 2, 3] every time"),
    "the answer for a draining loader": (lambda model_class: [3, 3, 3], "case 'a class that loads lazily'"),
    "calls __init__": (produced(make=lambda model_class: model_class()), "raised RuntimeError: no GPU found"),
    "leaves the normal half": (produced(install=no_normal_half), "the real normal half was called"),
    "names that are no experts": (produced(name="model.layers.{}.norm.weight"), "Put `.experts.` into the names"),
    "counts after the yield": (produced(late=True), "Raise the count before `yield`"),
    "counts what the recorder sees": (produced(see=counts_what_it_sees), "Count in the generator"),
    "lists before it counts": (produced(see=lists_first), "The recorder loops over `weights` and notes the count"),
    "hands over a list": (produced(hand=list), "Hand over a generator, not a list."),
    "notes once": (produced(see=after_the_loop), "has 1 items, expected 3"),
    "four tensors": (produced(tensors=4), "has 4 items, expected 3"),
    "a counter outside": (produced(shared=[0]), "no counter outside the function"),
    "on the class": (produced(install=on_the_class), "the class has a new _load_mxfp4_experts_weights"),
    "another __init__": (produced(make=without_init), "the class has a new __init__"),
    "a tuple": (lambda model_class: tuple(produced()(model_class)), "expected a list of 3 items"),
    "returns nothing": (lambda model_class: print(produced()(model_class)), "does every way through the function"),
}
WRONG = {load_lazily: LOAD_LAZILY, own: OWN, produced_when_seen: PRODUCED_WHEN_SEEN}


def test_an_answer_that_never_returns(monkeypatch):
    def asks_for_ever(weights, load_experts, load_normal, own):
        def experts():
            while True:
                yield from ((name, tensor) for name, tensor in weights if ".experts." in name)

        load_experts(experts())

    monkeypatch.setattr(load_lazily, "seconds", 0.5)
    verdict = load_lazily.verdict(asks_for_ever)
    assert not verdict.passed
    assert "case 'only experts': `load_lazily` did not return within 0.5 s" in str(verdict)


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (load_lazily, hermetic.load_lazily),
        (own, loading.own),
        (produced_when_seen, hermetic.produced_when_seen),
        (load_lazily, lazily()),
        (produced_when_seen, produced()),
        (own, owner(lambda t: torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()))),
        (own, owner(lambda t: torch.empty_like(t, device="cpu", requires_grad=False).copy_(t.detach()))),
        (own, owner(lambda t: t.detach().to(torch.device("cpu"), copy=True))),
        (own, owner(lambda t: t.detach().cpu() if t.device.type != "cpu" else t.detach().clone())),
    ],
    ids=lambda value: None if callable(value) else repr(value),
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize(("model_class", "counts"), [(Drains, [3, 3, 3]), (LoadsLazily, [1, 2, 3])])
def test_the_classes_that_the_lesson_shows_stay_as_they_are(model_class, counts):
    produced_when_seen.verdict(produced(install=on_the_class))
    assert hermetic.produced_when_seen(model_class) == counts
    with pytest.raises(RuntimeError, match="no GPU found"):
        model_class()
