"""The checkers of lesson 18 tell wrong answers apart; the case files and what stands around them do what is said."""

from __future__ import annotations

import weakref
from collections import Counter

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gptoss_lab.course.lessons.case_files_18 import CaseFile, open_case_files, source_line, waits
from gptoss_lab.course.lessons.check_pairs_18 import load_pairs, load_scaled
from gptoss_lab.course.lessons.lesson_18 import watch
from gptoss_lab.course.lessons.settled_22 import settled
from gptoss_lab.course.lessons.small_host_18 import load_on_small_host
from gptoss_lab.course.lessons.stand_ins_18 import InTime, Lender, OneStepLate, PlainCopies
from gptoss_lab.course.lessons.watching_18 import watch as package_watch
from gptoss_lab.weights import cases
from gptoss_lab.weights.borrow import StaleViewError, audit, guard, lend, own
from gptoss_lab.weights.cases import FUSED, KV_A, Q_A, dequantise, split_name
from gptoss_lab.weights.plan import plan
from gptoss_lab.weights.streaming import stream

# --- 18.1


def watches(grace=1, late=lambda now, slot, mine: slot.request <= now, last_look=True, follow="storage"):
    """An answer that is right but for one of these."""

    def reference(tensor):
        return weakref.ref(tensor) if follow == "tensor" else StorageWeakRef(tensor.untyped_storage())

    def alive(ref):
        return ref() is not None if follow == "tensor" else not ref.expired()

    def answer(weights, layout, kept):
        watched, now = [], 0

        def look():
            for name, ref in watched[: len(watched) - grace]:
                if alive(ref) and any(late(now, slot, layout.slot(name)) for slot in layout.overwriters(name)):
                    kept.add(name)

        for name, tensor in weights:
            now = layout.slot(name).request
            look()
            watched.append((name, reference(tensor)))
            yield name, tensor
        if last_look:
            look()

    return answer


def kept_in_its_request(weights, layout, kept):
    """Any tensor that outlives its request."""
    watched = []

    def look(now):
        kept.update(n for n, ref in watched[:-1] if not ref.expired() and layout.slot(n).request < now)

    now = 0
    for name, tensor in weights:
        now = layout.slot(name).request
        look(now)
        watched.append((name, StorageWeakRef(tensor.untyped_storage())))
        yield name, tensor
    look(now)


def by_the_plan_alone(weights, layout, kept):
    kept.update(layout.overwritten)
    yield from weights


def drains(weights, layout, kept):
    yield from list(weights)


def names_nobody(weights, layout, kept):
    yield from weights


def when_yielded(weights, layout, kept):
    """Only what lies under a tensor that has been yielded counts."""
    watched, yielded = [], set()

    def look():
        for name, ref in watched[:-1]:
            if not ref.expired() and any(slot.name in yielded for slot in layout.overwriters(name)):
                kept.add(name)

    for name, tensor in weights:
        yielded.add(name)
        look()
        watched.append((name, StorageWeakRef(tensor.untyped_storage())))
        yield name, tensor
    look()


def holds_them(weights, layout, kept):
    """Right, and keeps every tensor's views until the end in a list of its own, made after the look."""
    answer, mine = watches(), []
    for name, tensor in answer(weights, layout, kept):
        yield name, tensor
        mine.append(tensor.clone())  # a copy is no view
    del mine


def returns_a_set(weights, layout, kept):
    return set()


WATCH = {
    "names nobody": (names_nobody, "case 'a list of everything'"),
    "the plan alone": (by_the_plan_alone, "case 'a loader that copies each at once'"),
    "no step of grace": (watches(grace=0), "The loader's loop variable still names the tensor before"),
    "two steps of grace": (watches(grace=2), "also failing: "),
    "all that outlives its request": (kept_in_its_request, "case 'kept, and spared'"),
    "the next request only": (
        watches(late=lambda now, slot, mine: slot.request == mine.request + 1 <= now),
        "case 'spared by the next request, hit by a later one'",
    ),
    "any request to come": (watches(late=lambda now, slot, mine: True), "case 'kept within its request'"),
    "no look at the end": (watches(last_look=False), "and once more when the stream has ended"),
    "follows the object": (watches(follow="tensor"), "case 'a view and an array of it'"),
    "under what was yielded": (when_yielded, "A request is written before its tensors are yielded"),
    "drains the stream": (drains, "case"),
    "a set": (returns_a_set, "case 'a list of everything'"),
}

# --- 18.2


def pairs(keep=own, around=lend, order=True, key=lambda layer: layer, others=True, second=lambda tensor: tensor):
    """An answer that is right but for one of these."""

    def answer(model, weights):
        waiting = {}
        for name, tensor in around(weights):
            layer, half = split_name(name, (KV_A, Q_A))
            if half is None:
                if others:
                    model.copy_in(name, tensor)
            elif key(layer) not in waiting:
                waiting[key(layer)] = half, keep(tensor)
            else:
                first_half, first = waiting.pop(key(layer))
                tensor = second(tensor)
                both = {first_half: first, half: tensor}
                parts = [both[Q_A], both[KV_A]] if order and len(both) == 2 else [first, tensor]
                model.copy_in(layer + FUSED, torch.cat(parts))

    return answer


def only_kv_waits(model, weights):
    """Owns kv_a, and takes it for granted that it comes first."""
    waiting = {}
    for name, tensor in lend(weights):
        layer, half = split_name(name, (KV_A, Q_A))
        if half is None:
            model.copy_in(name, tensor)
        else:
            waiting.setdefault(layer, {})[half] = own(tensor) if half == KV_A else tensor
            if len(waiting[layer]) == 2:
                both = waiting.pop(layer)
                model.copy_in(layer + FUSED, torch.cat([both[Q_A], both[KV_A]]))


def owns_all(load):
    return lambda model, weights: load(model, [(name, own(tensor)) for name, tensor in lend(weights)])


def stops_early(load):
    def answer(model, weights):
        load(model, (next(iter(weights)) for _ in range(1)))

    return answer


def into_the_parameter(model, weights):
    """Copies nothing that waits: each half goes to its place in the fused parameter."""
    for name, tensor in weights:
        layer, half = split_name(name, (KV_A, Q_A))
        if half is None:
            model.copy_in(name, tensor)
            continue
        fused = model.tensors[layer + FUSED]
        part = fused[: len(tensor)] if half == Q_A else fused[len(fused) - len(tensor) :]
        part.copy_(tensor)


LOAD_PAIRS = {
    "the original": (cases.pair_cache, "Own the half that waits when it comes"),
    "contiguous": (pairs(keep=torch.Tensor.contiguous), "case 'kv_a first'"),
    "detach": (pairs(keep=torch.Tensor.detach), "case 'kv_a first'"),
    "own without lend": (pairs(around=iter), "case 'kv_a first'"),
    "in the order of arrival": (pairs(order=False), "parameters are wrong"),
    "only kv_a is owned": (only_kv_waits, "case 'q_a first'"),
    "one pair at a time": (pairs(key=lambda layer: ""), "case 'all of one kind first'"),
    "forgets the others": (pairs(others=False), "parameters are wrong"),
    "owns the second half too": (pairs(second=own), "The second half, and what is no half, are used at once"),
    "owns everything": (owns_all(cases.pair_cache), "bytes were copied"),
    "stops after one": (stops_early(cases.pair_cache_fixed), "parameters are wrong"),
}

# --- 18.3


def scaled(keep_weight=own, keep_scale=own, others=True, second=lambda tensor: tensor, make=dequantise):
    """An answer that is right but for one of these."""

    def answer(model, weights):
        waiting = {}
        for name, tensor in lend(weights):
            key = name.removesuffix("_scale")
            if ".mlp." not in name:
                if others:
                    model.copy_in(name, tensor)
            elif key not in waiting:
                waiting[key] = {name: (keep_scale if name != key else keep_weight)(tensor)}
            else:
                model.copy_in(key, make(key, waiting.pop(key) | {name: second(tensor)}))

    return answer


def one_at_a_time(model, weights):
    waiting = None
    for name, tensor in lend(weights):
        if ".mlp." not in name:
            model.copy_in(name, tensor)
        elif waiting is None:
            waiting = name, own(tensor)
        else:
            both = {waiting[0]: waiting[1], name: tensor}
            waiting = None
            key = name.removesuffix("_scale")
            model.copy_in(key, dequantise(key, both))


def by_columns(key, both):
    return both[key].float() * both[key + "_scale"].float()[None, :]


LOAD_SCALED = {
    "the original": (cases.pending_scale, "case 'the weight first'"),
    "owns weights only": (scaled(keep_scale=lambda tensor: tensor), "case 'the scale first'"),
    "owns scales only": (scaled(keep_weight=lambda tensor: tensor), "case 'the weight first'"),
    "contiguous": (scaled(torch.Tensor.contiguous, torch.Tensor.contiguous), "case 'the weight first'"),
    "one pair at a time": (one_at_a_time, "case 'both orders in one file'"),
    "forgets the others": (scaled(others=False), "parameters are wrong"),
    "scales by columns": (scaled(make=by_columns), "parameters are wrong"),
    "owns the second too": (scaled(second=own), "The second of the two is used at once"),
    "owns everything": (owns_all(cases.pending_scale), "bytes were copied"),
}

WRONG = {watch: WATCH, load_pairs: LOAD_PAIRS, load_scaled: LOAD_SCALED}


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (watch, package_watch),
        (watch, watches()),
        (watch, holds_them),
        (load_pairs, pairs()),
        (load_pairs, into_the_parameter),
        (load_scaled, cases.pending_scale_fixed),
        (load_scaled, scaled()),
    ],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)


# --- the case files


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[CaseFile]:
    return open_case_files(tmp_path_factory.mktemp("cases"))


def test_the_detector_and_the_audit_agree_on_every_case(files):
    for file in files:
        for limit in (0, file.plan(0).total_bytes // 3):
            kept, seen, layout = set(), [], file.plan(limit)
            file.wrong(limit, tool=lambda weights, layout=layout, kept=kept: package_watch(weights, layout, kept))
            file.wrong(limit, tool=lambda weights, seen=seen: seen.append(audit(weights)) or seen[0])
            assert sorted(kept) == seen[0].report().names
            assert bool(kept) == (file.number in (1, 2, 4, 5))


def test_a_case_file_has_one_outcome_and_can_be_loaded_again(files):
    limit = files[0].plan(0).total_bytes // 4
    for file in files:
        outcomes = {tuple(file.wrong(limit)) for _ in range(3)}
        assert len(outcomes) == 1 and bool(outcomes.pop()) == (file.number != 6)
        assert file.wrong(limit, file.fixed) == file.wrong(limit, file.fixed) == []


def test_opening_again_does_not_write_again(files):
    before = files[0].path.stat().st_mtime_ns
    assert open_case_files(files[0].path.parent)[0].path.stat().st_mtime_ns == before


def test_the_line_of_a_late_use_can_be_shown(files):
    with pytest.raises(StaleViewError) as error:
        files[0].wrong(0, tool=guard)
    assert "torch.cat" in source_line(error.value.used_at)


def test_waits_tells_a_loader_that_keeps_from_one_that_does_not(files):
    file = files[3]
    spans = {
        way: waits(file.stream(-1), lambda weights, way=way: getattr(file, way)(file.empty_model(), weights))
        for way in ("faulty", "fixed")
    }
    steps = len(file.plan(-1).slots)
    assert all(stop >= steps for _, stop in spans["faulty"].values())
    assert all(stop - start <= 2 for start, stop in spans["fixed"].values())
    assert [start for start, _ in spans["fixed"].values()] == list(range(steps))


@pytest.mark.parametrize(("worker", "steps"), [(InTime, 0), (OneStepLate, 1)])
def test_the_workers_are_as_late_as_they_say(worker, steps):
    done, behind = [], []
    with worker() as pool:
        for job in range(5):
            pool.submit(done.append, job)
            behind.append(job + 1 - len(done))
    assert done == [0, 1, 2, 3, 4] and Counter(behind) == {steps: 5}


def test_a_worker_passes_errors_on():
    with OneStepLate() as pool:
        future = pool.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        future.result()


def test_the_lender_packs_and_overwrites_as_the_plan_of_the_package_says():
    tensors = {f"t{i:02}": torch.full((1 + i % 5,), i, dtype=torch.uint8) for i in range(20)}
    lender = Lender(tensors, 7)
    kept = list(lender.weights())
    changed = [name for name, tensor in kept if not torch.equal(tensor, tensors[name])]
    assert changed == lender.layout.overwritten and len(changed) > 10


def test_plain_copies_counts_copies_and_not_casts():
    tensor = torch.ones(8)
    with PlainCopies() as copies:
        tensor.clone(), tensor.to("cpu", copy=True), tensor.double(), tensor.contiguous(), torch.cat([tensor, tensor])
    assert copies.bytes == 2 * tensor.nbytes


def test_a_small_host_has_room_for_the_fix_and_not_for_the_clones():
    assert load_on_small_host("clone_everything", fixed=False) == "out of host memory"
    assert load_on_small_host("clone_everything", fixed=True) == "loaded"


def test_a_draft_model_changes_no_text_and_a_broken_one_is_never_right():
    from gptoss_lab.course import lab
    from gptoss_lab.course.lessons.drafting_18 import speculate
    from gptoss_lab.model import Config, GptOss, generate, load_model, load_tokenizer

    tokenizer, target = load_tokenizer(lab.CAPITALS), load_model(lab.CAPITALS)
    broken = GptOss(Config.from_file(lab.CAPITALS))
    limit = 1_000_000
    cases.three_lists(broken, settled(stream(lab.CAPITALS, memory_limit=limit), plan(lab.CAPITALS, limit)))
    for country in ("France", "Peru"):
        prompt = f"The capital of {country} is"
        alone = generate(target, tokenizer, prompt)
        for draft, checks in ((target, 1), (broken, len(alone.tokens))):
            drafted = speculate(target, draft, tokenizer, prompt)
            assert (drafted.text, drafted.tokens, drafted.checks) == (alone.text, len(alone.tokens), checks)
        assert drafted.acceptance_length == 1
        assert speculate(target, target, tokenizer, prompt, most=2).tokens == 2
