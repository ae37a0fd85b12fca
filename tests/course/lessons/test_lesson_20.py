"""The checkers of lesson 20 tell wrong answers apart; its patients, prices and both streamers do what is said."""

from __future__ import annotations

import itertools
import json
from collections import deque
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gptoss_lab.course.lessons import child_20, loaders_20, mended_20, newer_20, owning_20
from gptoss_lab.course.lessons.lesson_20 import load_bf16, load_quark, own_by_memory
from gptoss_lab.course.lessons.loaders_20 import PAIR, QUARK_EXPERT, canonical_name, copy_all, parts
from gptoss_lab.course.lessons.owning_20 import IN_ITS_MEMORY, WAYS, mark_storage, memory_of, own_if_storage_marked
from gptoss_lab.course.lessons.patients_20 import Patient, in_bf16, open_patients
from gptoss_lab.course.lessons.prices_20 import Price, price_of
from gptoss_lab.mxfp4 import dequantise
from gptoss_lab.weights import loading, newer_streamer
from gptoss_lab.weights.borrow import lend, own
from gptoss_lab.weights.cases import Parameters, split_name
from gptoss_lab.weights.compare import shares_memory
from gptoss_lab.weights.layout import GPT_OSS_20B, TINY, tensor_specs
from gptoss_lab.weights.newer_streamer import FOLDER_VARIABLE
from gptoss_lab.weights.streaming import is_streamed, stream

# --- 20.1


def quark(keep=own, around=lend, expert=QUARK_EXPERT.search, drain=True, hand=iter, price=None, finish=list):
    """An answer that is right but for one of these."""

    def answer(weights, load_experts, load_normal):
        normal = []

        def experts():
            for name, tensor in around(weights):
                if expert(name):
                    yield name, tensor
                else:
                    normal.append((name, keep(tensor)))

        stream = experts()
        load_experts(hand(stream))
        if drain:
            deque(stream, maxlen=0)
        load_normal(finish(normal))
        copied = sum(tensor.nbytes for _, tensor in normal)
        return copied if price is None else price(copied, normal)

    return answer


def two_lists(weights, load_experts, load_normal):
    experts, normal = [], []
    for name, tensor in weights:
        (experts if QUARK_EXPERT.search(name) else normal).append((name, tensor))
    load_experts(experts)
    load_normal(normal)
    return sum(tensor.nbytes for _, tensor in normal)


def one_call_each(weights, load_experts, load_normal):
    for name, tensor in weights:
        (load_experts if QUARK_EXPERT.search(name) else load_normal)([(name, tensor)])
    return 0


def owns_all(answer):
    """Copies the whole stream first, one by one."""
    return lambda weights, *halves: answer(((name, tensor.clone()) for name, tensor in weights), *halves)


def normal_first(weights, load_experts, load_normal):
    weights = [(name, own(tensor)) for name, tensor in lend(weights)]
    load_normal([pair for pair in weights if not QUARK_EXPERT.search(pair[0])])
    load_experts([pair for pair in weights if QUARK_EXPERT.search(pair[0])])
    return 0


def with_a_stray_yield(answer):
    def generator(*args):
        answer(*args)
        yield

    return generator


LOAD_QUARK = {
    "does nothing": (lambda *_: 0, "case 'only experts': the experts as they were read lacks"),
    "the original": (two_lists, "a list drains the stream first"),
    "lists the experts": (quark(hand=list), "a list drains the stream first"),
    "keeps views": (quark(keep=lambda tensor: tensor), "case 'only others'"),
    "contiguous": (quark(keep=torch.Tensor.contiguous), "case 'only others'"),
    "own without lend": (quark(around=iter), "`lend` around the stream"),
    "owned by the mark": (quark(keep=loading.own), "case 'only others'"),
    "any name with experts": (quark(expert=lambda name: ".experts" in name), "number, projection, suffix"),
    "leaves the rest to the half": (quark(drain=False), "case 'an expert half that stops early'"),
    "a call for each": (one_call_each, "case 'each half is called once, experts first'"),
    "the other half first": (normal_first, "case 'each expert is read as it arrives'"),
    "no price": (quark(price=lambda copied, normal: None), "case 'the price'"),
    "counts tensors": (quark(price=lambda copied, normal: len(normal)), "add up `tensor.nbytes`"),
    "counts elements": (
        quark(price=lambda copied, normal: sum(tensor.numel() for _, tensor in normal)),
        "the bytes that it says it copied is 12, expected 24",
    ),
    "a stray yield": (with_a_stray_yield(quark()), "returned a generator: its body never ran"),
    "a price by heart": (quark(price=lambda copied, normal: 24), "case 'the price'"),
    "copies the experts": (owns_all(quark()), "An expert is used at once and needs no copy"),
    "owns twice": (quark(keep=lambda tensor: own(tensor).clone()), "bytes were copied, 24 are enough"),
}

# --- 20.2


def bf16(keep=own, around=lend, second=lambda tensor: tensor, swap=True, put=parts, alone=True, forget=True, key=None):
    """An answer that is right but for one of these."""

    def answer(model, weights):
        waiting, kept = {}, []
        for name, tensor in around(weights):
            pair, half = split_name(name, PAIR)
            slot = pair if key is None else key
            if half is None:
                copy_all(model, put(name, tensor))
            elif slot not in waiting:
                waiting[slot] = pair + half, keep(tensor)
                if not forget:
                    kept.append(waiting[slot])
            else:
                _, first = waiting.pop(slot)
                tensor = second(tensor)
                both = (first, tensor) if half == ".scales" or not swap else (tensor, first)
                copy_all(model, put(pair, dequantise(*both)))
        if waiting and alone:
            raise ValueError(f"alone: {[name for name, _ in waiting.values()]}")

    return answer


def only_blocks_wait(model, weights):
    """Takes for granted that the blocks come first."""
    waiting = {}
    for name, tensor in lend(weights):
        key, half = split_name(name, PAIR)
        if half == ".blocks":
            waiting[key] = own(tensor)
        else:
            copy_all(model, parts(key, tensor if half is None else dequantise(waiting.pop(key), tensor)))
    if waiting:
        raise ValueError(f"alone: {[key + '.blocks' for key in waiting]}")


def without_new_names(name, tensor):
    return [(name, tensor)]


def without_a_cut(name, tensor):
    return [(canonical_name(name), tensor)]


LOAD_BF16 = {
    "does nothing": (lambda model, weights: None, "parameters are wrong"),
    "the original": (loaders_20.load_bf16, "Own the half that waits when it comes"),
    "owns everything": (mended_20.owning_everything(loaders_20.load_bf16), "case 'a half alone'"),
    "contiguous": (bf16(keep=torch.Tensor.contiguous), "case 'blocks, then scales'"),
    "own without lend": (bf16(around=iter), "case 'blocks, then scales'"),
    "only blocks wait": (only_blocks_wait, "case 'scales, then blocks'"),
    "in the order of arrival": (bf16(swap=False), "case 'scales, then blocks': `load_bf16` raised ValueError: blocks"),
    "one pair at a time": (bf16(key="the pair"), "case 'several pairs wait'"),
    "old names": (bf16(put=without_new_names), "case 'blocks, then scales'"),
    "no cut": (
        bf16(put=without_a_cut),
        "case 'q, k and v': `load_bf16` raised KeyError: 'model.layers.0.self_attn.qkv",
    ),
    "silent about a half alone": (bf16(alone=False), "raise a ValueError that names it"),
    "owns the second half too": (bf16(second=own), "The second half, and what is no half, are used at once"),
    "owns on the way in": (
        lambda model, weights: bf16(keep=lambda t: t, around=iter)(model, ((n, own(t)) for n, t in lend(weights))),
        "bytes were copied",
    ),
    "keeps its copies": (bf16(forget=False), "and keep it nowhere else"),
    "a stray yield": (with_a_stray_yield(bf16()), "returned a generator: its body never ran"),
    "sorted": (lambda model, weights: bf16(around=lambda w: sorted(lend(w)))(model, weights), "parameters are wrong"),
}

# --- 20.3


def owner(is_lent, copies=lambda tensor: tensor.detach().to("cpu", copy=True)):
    """An answer by a rule and a way of copying."""
    return lambda tensor, lent: copies(tensor) if is_lent(tensor, lent) else tensor


def meets(tensor, lent):
    start, stop = memory_of(tensor)
    return any(start < last and first < stop for first, last in lent)


def whole_storage(tensor):
    storage = tensor.detach().untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


OWN_BY_MEMORY = {
    "never copies": (owner(lambda tensor, lent: False), "case 'as it was yielded'"),
    "always copies": (owner(lambda tensor, lent: True), "case 'somebody else's tensor'"),
    "the mark on the tensor": (owner(lambda tensor, lent: is_streamed(tensor)), "case 'as it was yielded'"),
    "the mark on the storage": (
        lambda tensor, lent: own_if_storage_marked(tensor),
        "case 'as it was yielded'",
    ),
    "the mark, or the first byte": (
        owner(lambda tensor, lent: is_streamed(tensor) or tensor.data_ptr() in [first for first, _ in lent]),
        "copy if a range meets them",
    ),
    "memory or the mark": (
        owner(lambda tensor, lent: is_streamed(tensor) or meets(tensor, lent)),
        "a copy can carry it too",
    ),
    "its first byte": (
        owner(lambda tensor, lent: any(first <= tensor.data_ptr() < last for first, last in lent)),
        "Two ranges meet if the later start is before both ends",
    ),
    "its own bytes": (
        owner(lambda t, lent: any(t.data_ptr() < last and first < t.data_ptr() + t.nbytes for first, last in lent)),
        "case 'a view that skips bytes'",
    ),
    "only what lies inside": (
        owner(lambda t, lent: any(first <= memory_of(t)[0] and memory_of(t)[1] <= last for first, last in lent)),
        "case 'memory that begins before'",
    ),
    "the first loan alone": (owner(lambda tensor, lent: meets(tensor, lent[:1])), "case 'as it was yielded'"),
    "with its end": (
        owner(lambda t, lent: any(memory_of(t)[0] <= last and first <= memory_of(t)[1] for first, last in lent)),
        "The end of a range is the first byte that is not in it",
    ),
    "from the first loan to the last": (
        owner(lambda t, lent: bool(lent) and meets(t, [(lent[0][0], lent[-1][1])])),
        "bytes 48 to 64, not lent came back as another object",
    ),
    "views only": (owner(lambda tensor, lent: tensor._base is not None), "case"),
    "detach is no copy": (owner(meets, torch.Tensor.detach), "still lies in the stream's memory"),
    "cpu() is no copy": (
        owner(meets, lambda tensor: tensor.detach().cpu()),
        '`.to("cpu")` of a CPU tensor is the tensor itself',
    ),
    "contiguous is no copy": (owner(meets, lambda tensor: tensor.contiguous()), "still lies in the stream's memory"),
    "keeps the history": (owner(meets, lambda tensor: tensor.to("cpu", copy=True)), "Detach: a weight that waits"),
    "the whole storage": (owner(meets, whole_storage), "bytes were allocated for a tensor of 512"),
    "two copies": (owner(meets, lambda tensor: tensor.detach().clone().to("cpu", copy=True)), "were allocated"),
    "returns nothing for a loan": (lambda t, lent: None if meets(t, lent) else t, "a lent tensor: returned None"),
    "returns nothing for another's": (
        lambda t, lent: t.detach().to("cpu", copy=True) if meets(t, lent) else None,
        "does every way through the function `return`?",
    ),
}

WRONG = {load_quark: LOAD_QUARK, load_bf16: LOAD_BF16, own_by_memory: OWN_BY_MEMORY}


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (load_quark, mended_20.load_quark),
        (load_quark, quark()),
        (load_quark, quark(keep=torch.clone, around=iter)),
        (load_quark, quark(finish=sorted)),
        (load_bf16, mended_20.load_bf16),
        (load_bf16, bf16()),
        (own_by_memory, owning_20.own_by_memory),
        (own_by_memory, owner(meets, lambda tensor: tensor.detach().clone())),
    ],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("checker", WRONG, ids=lambda checker: checker.exercise)
def test_an_answer_that_raises_or_never_returns_is_told(checker, monkeypatch):
    def raises(*args):
        raise KeyError("oops")

    def endless(*args):
        for _ in itertools.count():
            pass

    assert "KeyError" in str(checker.verdict(raises))
    monkeypatch.setattr(checker, "seconds", 0.3)
    assert "did not return within 0.3 s" in str(checker.verdict(endless))


# --- the patients


@pytest.fixture(scope="module")
def patients(tmp_path_factory) -> list[Patient]:
    return open_patients(tmp_path_factory.mktemp("patients"))


MENDS = {"mxfp4": loaders_20.load_mxfp4, "quark": mended_20.quark_into, "bf16": mended_20.load_bf16}


def test_each_exposed_loader_fails_at_a_small_limit_and_each_mend_passes_at_all(patients):
    for patient in patients:
        limits = patient.limits()
        assert list(limits) == ["0", "quarter", "half", "none"]
        counts = [len(patient.wrong(limit)) for limit in limits.values()]
        assert [bool(count) for count in counts] == [patient.name != "mxfp4"] * 3 + [False]
        assert all(patient.wrong(limit, MENDS[patient.name]) == [] for limit in limits.values())


def test_what_is_expected_is_what_safetensors_reads(patients):
    for patient in patients:
        stored = load_file(patient.path)
        same = [name for name in patient.expected if name in stored]
        assert len(same) == (0 if patient.name == "bf16" else len(stored))
        assert all(torch.equal(patient.expected[name], stored[name]) for name in same)
    original, expected = load_file(patients[2].path), patients[2].expected
    layer, key = "model.layers.3.", "block.3.mlp.mlp2_weight"
    down = dequantise(original[key + ".blocks"], original[key + ".scales"])
    assert torch.equal(expected[layer + "mlp.experts.down_proj"], down)
    rows = [expected[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(torch.cat(rows), original["block.3.attn.qkv.weight"]) and len(rows[0]) == 4 * len(rows[1])
    assert torch.equal(expected[layer + "input_layernorm.weight"], original["block.3.attn.norm.scale"])
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= expected.keys()


def test_the_names_of_the_quark_checkpoint_are_told_as_sglang_tells_them():
    prefix = "model.layers.0.mlp.experts."
    names = {"0.gate_up_proj.weight": True, "11.down_proj.weight_scale": True, "0.down_proj.bias": True}
    names |= {"gate_up_proj_bias": False, "0.gate_up_proj.weights": False, "x.down_proj.bias": False}
    assert {name: bool(QUARK_EXPERT.search(prefix + name)) for name in names} == names


def test_the_tools_name_the_exposed_loaders_and_are_silent_on_the_mended(patients):
    for patient in patients:
        report, error = patient.diagnose()
        assert (bool(report.kept), error is not None) == (patient.name != "mxfp4",) * 2
        report, error = patient.diagnose(MENDS[patient.name])
        assert report.kept == () and error is None and report.tensors == len(patient.plan(0).slots)


def test_a_half_alone_is_named(patients):
    weights = [pair for pair in patients[2].stream(-1) if not pair[0].endswith("2.mlp.mlp1_weight.scales")]
    with pytest.raises(ValueError, match="block.2.mlp.mlp1_weight.blocks"):
        mended_20.load_bf16(Parameters(patients[2].expected), weights)


def test_in_bf16_has_the_values_of_the_packed_experts_and_no_scales():
    specs, made = tensor_specs(TINY), in_bf16(tensor_specs(TINY))
    blocks = {s.name: s for s in specs if s.name.endswith("_blocks")}
    assert len(made) == len(specs) - len(blocks) and not any(s.name.endswith(("_blocks", "_scales")) for s in made)
    for spec in made:
        packed = blocks.get(spec.name + "_blocks")
        assert packed is None or spec.nbytes == 4 * packed.nbytes  # two values a byte become two bytes a value
    assert sum(s.nbytes for s in in_bf16(tensor_specs(GPT_OSS_20B))) > 40e9


# --- prices and owners


def test_a_price_counts_copies_that_change_nothing_and_what_is_held_at_once():
    tensor = torch.ones(8)
    with Price() as price:
        kept = [tensor.clone() for _ in range(3)]
        kept.clear()
        tensor.to("cpu", copy=True), tensor.double(), tensor.contiguous(), tensor.view(-1)
    assert (price.bytes, price.peak) == (4 * tensor.nbytes, 3 * tensor.nbytes)


def test_the_cheap_mends_copy_what_waits(patients):
    for patient in patients[1:]:
        slots = patient.plan(-1).slots
        limit = patient.limits()["quarter"]
        cheap, blunt = (
            price_of(load, Parameters(patient.expected), patient.stream(limit))
            for load in (MENDS[patient.name], mended_20.owning_everything(patient.load))
        )
        total = sum(slot.nbytes for slot in slots)
        waits = (lambda name: not QUARK_EXPERT.search(name)) if patient.name == "quark" else is_blocks
        assert (blunt.bytes, blunt.peak) == (total, total)
        assert cheap.bytes == sum(slot.nbytes for slot in slots if waits(slot.name))
        assert cheap.peak <= cheap.bytes < total


def is_blocks(name: str) -> bool:
    return name.endswith(".blocks")


def test_a_mark_on_the_tensor_is_lost_where_qkv_is_cut_and_the_others_hold(patients):
    (*_, bf16_patient), limit = patients, 0
    by_mark = bf16_patient.wrong(limit, mended_20.sorting_late(loading.own))
    assert by_mark and {name.split(".")[-2] for name in by_mark} == {"q_proj", "k_proj", "v_proj"}
    assert bf16_patient.wrong(limit, mended_20.sorting_late(own_if_storage_marked), tool=mark_storage) == []
    assert bf16_patient.wrong(limit, mended_20.sorting_late(own), tool=lend) == []


def test_what_is_derived_lies_in_the_memory_or_not(patients):
    ((_, tensor), *_) = mark_storage(stream(patients[0].path, memory_limit=-1, concurrency=1))
    lent = [memory_of(tensor)]
    made = {way: derive(tensor) for way, derive in WAYS.items()}
    shares = [shares_memory(derived, tensor) for derived in made.values()]
    assert shares == [place < IN_ITS_MEMORY for place in range(len(WAYS))]
    for (way, derived), lies_there in zip(made.items(), shares, strict=True):
        assert (owning_20.own_by_memory(derived, lent) is not derived) == lies_there
        by_storage = lies_there and way not in ("through numpy", "through dlpack")
        assert (own_if_storage_marked(derived) is not derived) == by_storage


# --- the newer streamer


def test_the_newer_streamer_gives_its_tensors_away(patients):
    path = patients[1].path
    assert newer_20.ask("drained", path, json.dumps([0, 100_000, -1])) == newer_20.RECORDED["drained"] | {
        "wrong": [0, 0, 0]
    }


def test_a_kept_norm_keeps_its_buffer_and_a_copy_lets_it_go(tmp_path):
    answer = newer_20.ask("kept", tmp_path, 32 * 2**20)
    kept, size = answer["kept"], answer["checkpoint"]
    assert list(kept) == list(child_20.KEEP) == list(newer_20.RECORDED["kept"]["kept"])
    assert (answer["norms"], size) == (newer_20.RECORDED["kept"]["norms"], newer_20.RECORDED["kept"]["checkpoint"])
    assert answer["norms"] < size / 500
    assert [held > size / 2 for held in kept.values()] == [False, False, True, True]


def test_borrowed_from_the_ring_tensors_are_lost(patients):
    limits = [*patients[1].limits().values(), 40_000_000_000]
    answer = newer_20.ask("ring", patients[1].path, json.dumps(limits), "[1, 18]", 2)
    found = {depth: [any(runs) for runs in counts] for depth, counts in answer.items()}
    assert found == {"1": [True, True, True, False, False], "18": [True, True, True, True, False]}
    recorded = newer_20.RECORDED["ring"]
    assert found == {depth: [any(runs) for runs in counts] for depth, counts in recorded.items()}


def test_where_the_newer_streamer_is_missing_the_record_is_shown_and_said(monkeypatch, tmp_path):
    assert newer_20.source().endswith("in a process of its own")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert newer_20.ask("drained", "nowhere", "[]") == newer_20.RECORDED["drained"]
    said = newer_20.source()
    assert "0.17 is not here" in said and newer_streamer.REMEDY in said and "2026-11-30" in said


def test_the_record_is_of_the_release_that_is_pinned():
    lock = Path(newer_streamer.ROOT / "locks" / "streamer-0.17.lock").read_text()
    assert f"runai-model-streamer=={newer_20.RECORDED['drained']['version']}" in lock
