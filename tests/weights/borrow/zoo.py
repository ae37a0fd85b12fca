"""Loaders, wrong and right, and what each tool says of them. `ROWS` is the table that the tests hold.

Each is called as `load(model, weights)`, as in `gptoss_lab.weights.cases`. Wrong ones give wrong parameters at the
limits 0, a quarter and a half of the checkpoint; right ones give the right ones.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from gptoss_lab.weights import cases, loading
from gptoss_lab.weights.borrow import lend, own
from gptoss_lab.weights.cases import CASES, Parameters

STALE, LEAVES, SILENT = "StaleViewError", "LeavesGuard", "-"


# --- wrong: something is kept


def into_list(model, weights):
    for name, tensor in list(weights):
        model.copy_in(name, tensor)


def into_dict(model, weights):
    for name, tensor in dict(weights).items():
        model.copy_in(name, tensor)


def into_sorted(model, weights):
    for name, tensor in sorted(weights):
        model.copy_in(name, tensor)


def into_deque(model, weights):
    queue = deque(weights)
    while queue:
        model.copy_in(*queue.popleft())


def teed(model, weights):
    names, tensors = itertools.tee(weights)
    known = {name for name, _ in names}
    for name, tensor in tensors:
        if name in known:
            model.copy_in(name, tensor)


def seen_and_rest(model, weights):
    weights = iter(weights)
    seen = [next(weights)]
    for name, tensor in (*seen, *weights):
        model.copy_in(name, tensor)


def two_lists(model, weights):
    loading.drain(model, weights)


def half_fixed(model, weights):
    experts, rest = lambda name: ".mlp." in name, []
    for name, tensor in weights:
        if experts(name):
            model.copy_in(name, tensor)
        else:
            rest.append((name, tensor))
    for name, tensor in rest:
        model.copy_in(name, tensor)


def in_closures(model, weights):
    for copy in [functools.partial(model.copy_in, name, tensor) for name, tensor in weights]:
        copy()


# --- wrong: a copy that is none


def keep(change: Callable) -> Callable:
    """Make a loader that keeps `change(tensor)` of every tensor and copies in when the stream has ended."""

    def load(model, weights):
        kept = [(name, change(tensor)) for name, tensor in weights]
        for name, tensor in kept:
            model.copy_in(name, tensor)

    return load


def by_mark_after_view(model, weights):
    kept = [(name, loading.own(tensor.view(tensor.shape))) for name, tensor in weights]
    for name, tensor in kept:
        model.copy_in(name, tensor)


def halves_kept(model, weights):
    kept = [(name, tensor.chunk(2)) for name, tensor in weights]
    for name, parts in kept:
        model.copy_in(name, torch.cat(parts))


def as_parameters(model, weights):
    for name, tensor in weights:
        model.tensors[name] = torch.nn.Parameter(tensor, requires_grad=False)


def as_data(model, weights):
    for name, tensor in weights:
        model.tensors[name].data = tensor


def as_raw_storage(model, weights):
    for name, tensor in weights:
        alias = torch.empty(0, dtype=tensor.dtype)
        model.tensors[name] = alias.set_(tensor.untyped_storage(), 0, tensor.shape, tensor.stride())


def as_numpy(model, weights):
    kept = [(name, tensor.view(torch.uint8).numpy()) for name, tensor in weights]
    for name, array in kept:
        model.copy_in(name, torch.from_numpy(array).view(model.tensors[name].dtype))


def around_numpy(model, weights):
    kept = [(name, torch.from_numpy(np.asarray(tensor.view(torch.uint8)))) for name, tensor in weights]
    for name, tensor in kept:
        model.copy_in(name, tensor.view(model.tensors[name].dtype))


# --- wrong: read one step late, then dropped


def looks_ahead(model, weights):
    waiting = None
    for item in weights:
        if waiting is not None:
            model.copy_in(*waiting)
        waiting = item
    model.copy_in(*waiting)


class OneStepLate(Executor):
    """A worker thread that is always one job behind: the worst moment for every tensor, each time."""

    def __init__(self) -> None:
        self.thread, self.waiting = ThreadPoolExecutor(max_workers=1), None

    def submit(self, function, /, *args):
        behind, self.waiting = self.waiting, (Future(), function, args)
        self.run(behind)
        return self.waiting[0]

    def run(self, job) -> None:
        if job is None:
            return
        future, function, args = job
        done = self.thread.submit(function, *args)
        error = done.exception()  # waits
        future.set_exception(error) if error else future.set_result(done.result())

    def shutdown(self, wait=True, **_):
        self.run(self.waiting)
        self.waiting = None
        self.thread.shutdown(wait)


def worker_one_step_late(model, weights):
    cases.worker_thread(model, weights, OneStepLate())


class AllAtTheEnd(OneStepLate):
    """A worker that begins when everything has been handed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = []

    def submit(self, function, /, *args):
        self.jobs.append((Future(), function, args))
        return self.jobs[-1][0]

    def shutdown(self, wait=True, **_):
        for job in self.jobs:
            self.run(job)
        super().shutdown(wait)


def worker_at_the_end(model, weights):
    cases.worker_thread(model, weights, AllAtTheEnd())


# --- right


def as_it_comes(model, weights):
    for name, tensor in weights:
        model.copy_in(name, tensor)


def placed(model, weights):
    loading.place(model, weights)


def host_copies(model, weights):
    loading.host_copies(model, weights)


def through_generators(model, weights):
    renamed = ((name.removeprefix("model."), tensor) for name, tensor in weights)
    flat = map(lambda item: (item[0], item[1].reshape(-1)), renamed)
    for (name, tensor), _ in zip(flat, itertools.count(), strict=False):
        model.copy_in(name, tensor.view(model.tensors[name].shape))


def owned_after(change: Callable) -> Callable:
    """Make a loader that keeps what `own` gives for something derived from each tensor."""

    def load(model, weights):
        kept = [(name, own(change(tensor))) for name, tensor in lend(weights)]
        for name, tensor in kept:
            model.copy_in(name, tensor)

    return load


def worker_with_copies(model, weights):
    cases.worker_thread_fixed(model, weights, OneStepLate())


def worker_that_is_waited_for(model, weights):
    with ThreadPoolExecutor(max_workers=1) as pool:
        for name, tensor in weights:
            pool.submit(model.copy_in, name, tensor).result()


def numpy_copies(model, weights):
    kept = [(name, tensor.view(torch.uint8).numpy().copy()) for name, tensor in weights]
    for name, array in kept:
        model.copy_in(name, torch.from_numpy(array).view(model.tensors[name].dtype))


def cast_and_kept(model, weights):
    kept = [(name, tensor.to(torch.float64)) for name, tensor in weights]
    for name, tensor in kept:
        model.copy_in(name, tensor)


def halves_as_they_come(model, weights):
    for name, tensor in weights:
        model.copy_in(name, torch.cat(tensor.chunk(2)))


def variable_that_lingers(model, weights):
    norm = None
    for name, tensor in weights:
        if "norm" in name:
            norm = tensor
            model.copy_in(name, norm)
        else:
            model.copy_in(name, tensor)


def tied_at_the_end(model, weights):
    norm = None
    for name, tensor in weights:
        if name == "layers.1.input_layernorm.weight":
            norm = name, tensor
        else:
            model.copy_in(name, tensor)
    model.copy_in(*norm)


def within_a_request(model, weights):
    """Keeps views, but never past their request: legal, and it takes the plan to know it."""
    waiting = []
    for name, tensor in weights:
        waiting.append((name, tensor))
        if model.is_last(name):
            while waiting:
                model.copy_in(*waiting.pop())


@dataclass(frozen=True)
class Row:
    """A loader, whether it is right, and what each tool says at every limit that overwrites."""

    name: str
    load: Callable[[Parameters, object], None]
    right: bool
    audit: bool
    guard: str
    strict: str
    prove: bool
    case: str = "plain"


def wrong(load, guard=STALE, strict=STALE, audit=True, name=None, case="plain") -> Row:
    return Row(name or load.__name__, load, False, audit, guard, strict, True, case)


def right(load, guard=SILENT, strict=SILENT, audit=False, name=None, case="plain") -> Row:
    return Row(name or load.__name__, load, True, audit, guard, strict, False, case)


def case_rows() -> list[Row]:
    """The six case files. Their worker thread has an outcome of its own each time: `OneStepLate` stands for it."""
    named = [case for case in CASES.values() if case.name not in ("clone_everything", "worker_thread")]
    return [
        *(wrong(case.faulty, case=case.name) for case in named),
        *(right(case.fixed, case=case.name) for case in named),
        right(CASES["clone_everything"].faulty),
        right(CASES["clone_everything"].fixed),
    ]


ROWS = {
    row.name: row
    for row in (
        *case_rows(),
        wrong(into_list),
        wrong(into_dict),
        wrong(into_sorted),
        wrong(into_deque),
        wrong(teed),
        wrong(seen_and_rest),
        wrong(two_lists),
        wrong(half_fixed),
        wrong(in_closures),
        wrong(keep(torch.Tensor.contiguous), name="contiguous"),
        wrong(keep(torch.Tensor.cpu), name="cpu"),
        wrong(keep(lambda tensor: tensor.to(tensor.device)), name="to_same_device"),
        wrong(keep(torch.Tensor.detach), name="detach"),
        wrong(keep(lambda tensor: tensor.data), name="data"),
        wrong(keep(lambda tensor: tensor.narrow(0, 0, len(tensor))), name="narrow"),
        wrong(by_mark_after_view),
        wrong(halves_kept),
        wrong(as_parameters),
        wrong(worker_at_the_end),
        wrong(looks_ahead, audit=False),
        wrong(worker_one_step_late, audit=False),
        wrong(as_numpy, LEAVES, LEAVES),
        wrong(around_numpy, LEAVES, LEAVES),
        wrong(keep(lambda tensor: torch.from_dlpack(tensor)), LEAVES, LEAVES, name="dlpack"),
        wrong(as_data, SILENT, SILENT),
        wrong(as_raw_storage, SILENT, SILENT),
        wrong(tied_at_the_end, audit=False),  # it says so apart: a variable held it
        right(as_it_comes),
        right(placed),
        right(host_copies),
        right(through_generators),
        right(owned_after(lambda tensor: tensor), name="own"),
        right(owned_after(lambda tensor: tensor.view(tensor.shape)), name="own_view"),
        right(owned_after(torch.Tensor.detach), name="own_detach"),
        right(owned_after(lambda tensor: torch.nn.Parameter(tensor, False)), name="own_parameter"),
        right(worker_with_copies),
        right(worker_that_is_waited_for),
        right(cast_and_kept),
        right(halves_as_they_come),
        right(numpy_copies, LEAVES, LEAVES),
        right(variable_that_lingers),
        right(within_a_request, strict=STALE),
    )
}


class PlannedParameters(Parameters):
    """Knows the plan, for the one loader that asks."""

    def __init__(self, like, layout) -> None:
        super().__init__(like)
        self._last = {request[-1].name for request in layout.requests}

    def is_last(self, name: str) -> bool:
        return name in self._last


def expected(row: Row, stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return cases.expected_parameters(stored, row.case)
