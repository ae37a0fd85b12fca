"""The six case files: each fails with its fault and passes with its fix, tensor by tensor against safetensors."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from settled import Files, settled
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from zoo import OneStepLate

from gptoss_lab.weights import cases
from gptoss_lab.weights.cases import CASES, Case, Parameters, expected_parameters
from gptoss_lab.weights.compare import differing

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
LIMITS = ["0", "quarter", "half", "none"]


def wrong(files: Files, load, case: Case, limit: str, **options) -> list[str]:
    expected = expected_parameters(files.stored, case.name)
    model = Parameters(expected)
    load(model, settled(files, files.limits.get(limit, -1)), **options)
    return differing(expected, model.tensors)


@every_case
@pytest.mark.parametrize("limit", LIMITS)
def test_a_case_is_wrong_with_its_fault_and_right_with_its_fix(files: Files, case: Case, limit) -> None:
    options = {"executor": OneStepLate()} if case.name == "worker_thread" else {}
    overwrites = limit != "none" and case.name != "clone_everything"
    assert bool(wrong(files, case.faulty, case, limit, **options)) == overwrites
    options = {"executor": OneStepLate()} if options else {}
    assert wrong(files, case.fixed, case, limit, **options) == []


def test_pending_scale_is_wrong_in_both_orders(files: Files) -> None:
    names = wrong(files, cases.pending_scale, CASES["pending_scale"], "half")
    assert any("experts" in name for name in names) and any("shared" in name for name in names)
    order = [slot.name for slot in cases_plan(files)]
    for layer in range(cases.LAYERS):
        prefix = f"layers.{layer}.mlp."
        assert order.index(prefix + "experts.weight_scale") < order.index(prefix + "experts.weight")
        assert order.index(prefix + "shared.weight") < order.index(prefix + "shared.weight_scale")


def cases_plan(files: Files):
    from gptoss_lab.weights.plan import plan

    return plan(files.path, -1).slots


def test_the_fixed_worker_is_right_with_real_threads(files: Files) -> None:
    case = CASES["worker_thread"]
    for workers in (1, 4):
        assert wrong(files, case.fixed, case, "0", executor=ThreadPoolExecutor(workers)) == []
    assert wrong(files, case.fixed, case, "0") == []


class LiveCopies(TorchDispatchMode):
    """The bytes of all tensors that operations have made and somebody still holds."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                storage = tensor.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    def bytes(self) -> int:
        return sum(size for reference, size in self.made.values() if not reference.expired())


def test_clone_everything_holds_the_checkpoint_twice_and_its_fix_nothing(files: Files) -> None:
    def most_copies(load) -> int:
        model, live, most = Parameters(files.stored), LiveCopies(), 0

        def watched():
            nonlocal most
            for item in settled(files, 0):
                yield item
                most = max(most, live.bytes())

        weights = watched()
        with live:
            load(model, weights)
        return most

    case = CASES["clone_everything"]
    assert most_copies(case.faulty) == files.total
    assert most_copies(case.fixed) == 0


@every_case
def test_a_case_file_is_short(case: Case) -> None:
    for load in (case.faulty, case.fixed):
        assert len(inspect.getsource(load).splitlines()) <= 25 and load.__doc__


def test_the_checkpoint_is_the_same_each_time(files: Files, tmp_path) -> None:
    assert cases.write_case_checkpoint(tmp_path).read_bytes() == files.path.read_bytes()
    assert cases.write_case_checkpoint(tmp_path, seed=1).read_bytes() != files.path.read_bytes()
