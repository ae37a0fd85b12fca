"""The audit: exact names, lines and overwriters; every way of keeping; no false alarm; streams without a streamer."""

from __future__ import annotations

import gc
import inspect
import itertools

import numpy as np
import pytest
import torch
from runai_model_streamer import SafetensorsStreamer
from settled import Files
from tqdm import tqdm

from gptoss_lab.weights import loading
from gptoss_lab.weights.borrow import KeptTooLate, audit
from gptoss_lab.weights.cases import Parameters
from gptoss_lab.weights.compare import same_bytes
from gptoss_lab.weights.plan import plan
from gptoss_lab.weights.streaming import STREAMED, stream

MANY = [0, 20_000, 65_536, 136_704, 273_408, 500_000, 546_815, 546_816, -1]


@pytest.mark.parametrize("limit", MANY)
@pytest.mark.parametrize("concurrency", [1, None])
def test_a_drained_stream_is_reported_tensor_by_tensor_as_planned(files: Files, limit, concurrency) -> None:
    weights = audit(stream(files.path, memory_limit=limit, concurrency=concurrency))
    kept = dict(weights)
    report, layout = weights.report(), plan(files.path, limit)
    assert report.names == sorted(layout.overwritten)
    assert report.requests == len(layout.requests) and report.tensors == len(kept)
    for found in report.kept:
        mine, overwriters = layout.slot(found.name), layout.overwriters(found.name)
        first = [slot.name for slot in overwriters if slot.request == overwriters[0].request]
        assert (found.request, found.by_request) == (mine.request, overwriters[0].request)
        assert list(found.overwritten_by) == first
        assert found.still_held and found.variable is None


def test_the_stream_is_yielded_unchanged(files: Files) -> None:
    for name, tensor in audit(stream(files.path, memory_limit=0)):
        assert type(tensor) is torch.Tensor and getattr(tensor, STREAMED)
        assert same_bytes(tensor, files.stored[name])


def test_the_report_names_the_line_at_which_the_stream_advanced(files: Files) -> None:
    weights = audit(stream(files.path, memory_limit=0))
    kept = [next(weights)]
    for item in weights:
        kept.append(item)  # two lines up is the line that asks for the next tensor
    line = weights.report().kept[1].advanced_at
    code, start = inspect.getsourcelines(test_the_report_names_the_line_at_which_the_stream_advanced)
    wanted = next(number for number, text in enumerate(code, start) if "for item in weights" in text)
    assert (line.file, line.number) == (__file__, wanted)
    assert f"test_audit.py:{wanted} in test_the_report_names" in str(weights.report())


def test_a_line_in_a_generator_comes_with_the_line_that_drives_it(files: Files) -> None:
    def renamed(weights):
        for name, tensor in weights:
            yield "model." + name, tensor

    weights = audit(stream(files.path, memory_limit=0))
    kept = list(renamed(weights))
    line = weights.report().kept[0].advanced_at
    assert kept and line.function == "renamed"
    assert line.caller.function == "test_a_line_in_a_generator_comes_with_the_line_that_drives_it"


class Box:
    pass


def in_attribute(tensor):
    box = Box()
    box.tensor = tensor
    return box


WAYS_TO_KEEP = {
    "itself": lambda t: t,
    "view": lambda t: t.view(-1),
    "view of a view": lambda t: t.view(-1)[:1].unsqueeze(0),
    "narrow": lambda t: t[:1],
    "transposed": lambda t: t.reshape(-1, 1).T,
    "other dtype": lambda t: t.view(torch.uint8),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "storage": lambda t: t.untyped_storage(),
    "numpy": lambda t: t.view(torch.uint8).numpy(),
    "numpy view": lambda t: t.view(torch.uint8).numpy()[:1],
    "memoryview": lambda t: memoryview(t.view(torch.uint8).numpy()),
    "numpy and back": lambda t: torch.from_numpy(t.view(torch.uint8).numpy()),
    "dlpack": lambda t: torch.from_dlpack(t),
    "numpy's dlpack": lambda t: np.from_dlpack(t.view(torch.uint8)),
    "set_": lambda t: torch.empty(0, dtype=t.dtype).set_(t),
    "closure": lambda t: lambda: t,
    "attribute": in_attribute,
    "generator": lambda t: itertools.repeat(t),
}


@pytest.mark.parametrize("way", WAYS_TO_KEEP)
def test_every_way_of_keeping_a_tensor_is_found(files: Files, way) -> None:
    weights = audit(stream(files.path, memory_limit=0, concurrency=1))
    kept = []
    for _, tensor in weights:
        kept.append(WAYS_TO_KEEP[way](tensor))
    del tensor
    gc.collect()
    assert weights.report().names == sorted(plan(files.path, 0).overwritten)


COPIES = {
    "clone": lambda t: t.clone(),
    "to copy": lambda t: t.to("cpu", copy=True),
    "float64": lambda t: t.double(),
    "numpy copy": lambda t: t.view(torch.uint8).numpy().copy(),
    "sum": lambda t: t.sum(),
    "gather": lambda t: t[torch.tensor([0])],
    "bytes": lambda t: t.view(torch.uint8).numpy().tobytes(),
    "shape": lambda t: (t.shape, t.dtype, t.device),
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_no_alarm(files: Files, way) -> None:
    weights = audit(stream(files.path, memory_limit=0, concurrency=1))
    kept = [COPIES[way](tensor) for _, tensor in weights]
    report = weights.report()
    assert len(kept) == report.tensors and report.kept == report.in_variables == ()


def flattened(weights):
    for name, tensor in weights:
        yield name, tensor.view(-1)


def placed_by_halves(model: Parameters, weights, prepare=iter) -> None:
    """The shape of the fix: the experts' loop variable lies still while the rest passes by."""
    rest = []

    def experts():
        for name, tensor in prepare(weights):
            if "experts" in name:
                yield name, tensor
            else:
                rest.append((name, tensor.clone()))

    for item in experts():  # the pair as a whole
        model.copy_in(item[0], item[1].view(model.tensors[item[0]].shape))
    for name, tensor in rest:
        model.copy_in(name, tensor.view(model.tensors[name].shape))


@pytest.mark.parametrize("prepare", [iter, flattened])
def test_a_loop_variable_that_lies_still_is_told_apart_from_what_is_kept(files: Files, prepare) -> None:
    model, weights = Parameters(files.stored), audit(stream(files.path, memory_limit=0, concurrency=1))
    placed_by_halves(model, weights, prepare)
    report = weights.report()
    assert report.kept == ()
    assert [found.variable for found in report.in_variables] == ["'item' of placed_by_halves"]
    assert "1 more stayed in variables" in str(report)
    report.require_none_kept()


def test_a_variable_beside_a_list_is_no_excuse(files: Files) -> None:
    kept = []
    weights = audit(stream(files.path, memory_limit=0, concurrency=1))
    for number, (_, tensor) in enumerate(weights):
        if number == 3:
            third, view = tensor, tensor.view(-1)
            kept.append(third if len(kept) else [third])
    report = weights.report()
    assert len(report.kept) == 1 and report.in_variables == () and len(view)


def test_a_variable_whose_view_is_in_a_list_is_no_excuse(files: Files) -> None:
    weights = audit(stream(files.path, memory_limit=0, concurrency=1))
    kept, first = [], None
    for _, tensor in weights:
        if first is None:
            first = tensor
            kept.append(tensor.view(-1))
    assert len(weights.report().kept) == 1


def test_looking_for_variables_leaves_them_as_they_are(files: Files) -> None:
    first, weights = None, audit(stream(files.path, memory_limit=0, concurrency=1))
    for name, tensor in weights:
        first = first or name
        seen = name, tensor.shape
    assert first == next(iter(plan(files.path, 0).slots)).name and seen[0] == name
    reference = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
    del tensor
    assert reference.expired()  # the audit's look at this frame did not keep it


def test_the_report_of_a_fix_and_of_the_defect(files: Files) -> None:
    for strategy, kept in ((loading.host_copies, 0), (loading.place, 0), (loading.drain, 92)):
        weights = audit(stream(files.path, memory_limit=0, concurrency=1))
        strategy(Parameters(files.stored), weights)
        assert len(weights.report().kept) == kept
    with pytest.raises(KeptTooLate, match="92 of 96 tensors"):
        weights.report().require_none_kept()


def test_a_stream_that_is_broken_off_is_reported_as_far_as_it_came(files: Files) -> None:
    weights = audit(stream(files.path, memory_limit=files.total // 4, concurrency=1))
    layout = plan(files.path, files.total // 4)
    kept = []
    for item in weights:
        kept.append(item)
        if layout.slot(item[0]).request == 1:
            break
    report = weights.report()
    # The second request reaches over most of the first, and has yielded one tensor. Two steps have not passed, so
    # the tensor before it is looked at when the report is made.
    reach = layout.requests[1][-1].stop
    assert report.names == sorted(slot.name for slot in layout.requests[0] if slot.start < reach)
    assert "tensors that were not asked for" in str(report)
    weights.close()
    assert list(weights) == []


def test_the_report_may_be_asked_for_at_any_time_and_again(files: Files) -> None:
    weights = audit(stream(files.path, memory_limit=0))
    kept, counts = [], []
    for item in weights:
        kept.append(item)
        counts.append(len(weights.report().kept))
    assert counts == sorted(counts) and counts[-1] == 92 == len(weights.report().kept) == len(weights.report().kept)


def test_what_only_a_cycle_holds_is_no_alarm(files: Files) -> None:
    weights = audit(stream(files.path, memory_limit=0, concurrency=1))
    for _, tensor in weights:
        cycle = Box()
        cycle.me, cycle.tensor = cycle, tensor
        del cycle
    assert weights.report().kept == ()


def with_progress(tensors):
    """The shape of SGLang's and vLLM's own iterators."""
    for name, tensor in tqdm(tensors, disable=True):
        tensor.mark = True
        yield name, tensor


def test_the_streamer_may_be_used_directly_and_through_wrappers(files: Files, monkeypatch) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", "0")
    wraps = (iter, lambda tensors: map(tuple, tensors), lambda tensors: (item for item in tensors), with_progress)
    for wrap in wraps:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(files.path)])
            weights = audit(wrap(streamer.get_tensors()))
            kept = list(weights)
            report = weights.report()
        assert report.guessed == 0 and report.names == sorted(plan(files.path, 0).overwritten) and kept


class Sealed:
    """An iterator behind which the streamer cannot be found, so that addresses alone tell."""

    def __init__(self, source) -> None:
        hidden = [source]
        self.ask = type("Hidden", (), {"__call__": lambda self: next(hidden[0])})()

    def __iter__(self):
        return self

    def __next__(self):
        return self.ask()


@pytest.mark.parametrize("limit", MANY)
@pytest.mark.parametrize("concurrency", [1, None])
def test_without_the_streamer_addresses_tell_the_same(files: Files, limit, concurrency) -> None:
    weights = audit(Sealed(stream(files.path, memory_limit=limit, concurrency=concurrency)))
    kept = dict(weights)
    report = weights.report()
    assert report.guessed == len(kept) and report.names == sorted(plan(files.path, limit).overwritten)
    weights = audit(Sealed(stream(files.path, memory_limit=limit, concurrency=concurrency)))
    copies = [tensor.clone() for _, tensor in weights]
    assert copies and weights.report().kept == ()


def test_without_the_streamer_a_read_before_the_slot_is_yielded_counts(files: Files) -> None:
    """A slot is filled before its tensor is yielded, so what was dropped in between was held too long."""
    limit = files.total // 2
    layout = plan(files.path, limit)
    last = layout.requests[0][-2].name
    weights, kept = audit(Sealed(stream(files.path, memory_limit=limit, concurrency=1))), []
    for number, (name, tensor) in enumerate(weights):
        if name == last:
            kept.append(tensor)
        if number == len(layout.requests[0]) + 1:
            kept.clear()
    assert weights.report().names == [last]


def test_streams_whose_tensors_are_their_own_are_never_reported() -> None:
    buffer = torch.arange(8.0)
    weights = audit((f"t{i}", (buffer + i).clone()) for i in range(50))
    kept = [tensor for i, (_, tensor) in enumerate(weights) if i % 2]
    assert weights.report().kept == () and weights.report().tensors == 50 and kept


def test_views_of_one_storage_are_followed_by_themselves() -> None:
    """As a distributed stream gives them: slices of one buffer, whose storage outlives them all."""
    buffer = torch.zeros(100)

    def slices():
        for start in (0, 30, 60, 0, 50, 0, 20):
            yield f"at {start}", buffer[start : start + 20]

    weights = audit(slices())
    for _, tensor in weights:
        tensor.clone()
    assert weights.report().kept == ()
    weights = audit(slices())
    kept = list(weights)
    # A request begins where a tensor lies on an earlier one: 0 30 60 | 0 50 | 0 20.
    found = [(tensor.name, tensor.by_request) for tensor in weights.report().kept]
    assert found == [("at 0", 1), ("at 30", 2), ("at 60", 1), ("at 0", 2)] and kept
