"""`own` decides by memory: right after every derivation, the same object for everybody else."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from settled import Files

from gptoss_lab.weights import loading
from gptoss_lab.weights.borrow import is_lent, lend, own
from gptoss_lab.weights.compare import same_bytes, shares_memory
from gptoss_lab.weights.streaming import is_streamed, stream

DERIVED = {
    "itself": lambda t: t,
    "view": lambda t: t.view(t.shape),
    "reshape": lambda t: t.reshape(t.shape),
    "narrow": lambda t: t.narrow(0, 0, len(t)),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "contiguous": lambda t: t.contiguous(),
    "cpu": lambda t: t.cpu(),
    "to the same device": lambda t: t.to("cpu"),
    "transposed twice": lambda t: t.T.T,
    "numpy and back": lambda t: torch.from_numpy(t.view(torch.uint8).numpy()).view(t.dtype),
    "a slice by numpy": lambda t: torch.from_numpy(np.asarray(t.view(torch.uint8))[:]).view(t.dtype),
    "dlpack": lambda t: torch.from_dlpack(t),
}


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("way", DERIVED)
def test_own_copies_whatever_lies_in_the_stream_s_memory(files: Files, way) -> None:
    kept = {}
    for name, tensor in lend(stream(files.path, memory_limit=0)):
        owned = own(DERIVED[way](tensor))
        assert not shares_memory(owned, tensor)
        assert owned.device.type == "cpu" and type(owned) is torch.Tensor and not is_streamed(owned)
        kept[name] = owned
    assert all(same_bytes(kept[name], files.stored[name]) for name in files.stored)


def test_the_mark_alone_does_not_see_what_is_derived(files: Files) -> None:
    """Why `own` exists: the same through the helper that goes by the mark."""
    for name in ("view", "detach", "data", "parameter", "narrow"):
        for _, tensor in lend(stream(files.path, memory_limit=0)):
            derived = DERIVED[name](tensor)
            assert loading.own(derived) is derived and own(derived) is not derived


def test_anybody_else_s_tensor_is_handed_through(files: Files) -> None:
    for _, tensor in lend(stream(files.path, memory_limit=0)):
        mine, memory = torch.full((4,), 1.0), torch.from_numpy(np.zeros(tensor.nbytes + 1, np.uint8))
        assert own(mine) is mine and own(memory) is memory
        copied = own(tensor)
        assert own(copied) is copied
        empty = tensor[:0]
        assert own(empty) is empty
    for tensor in load_file(files.path).values():
        assert own(tensor) is tensor


def test_a_marked_tensor_is_copied_without_lend_too(files: Files) -> None:
    for _, tensor in stream(files.path, memory_limit=0):
        assert not is_lent(tensor) and not shares_memory(own(tensor), tensor)


def test_memory_is_lent_until_nobody_uses_it_after_the_stream() -> None:
    buffer = np.zeros(100, np.uint8)  # kept here, so that its addresses stay the same
    kept = [tensor.view(-1) for _, tensor in lend([("a", torch.from_numpy(buffer[10:20]))])]
    assert is_lent(kept[0]) and is_lent(torch.from_numpy(buffer[15:16]))
    kept.clear()
    gc.collect()
    mine = torch.from_numpy(buffer[10:20])
    assert own(mine) is mine


def test_neighbours_of_lent_memory_are_not_lent() -> None:
    buffer = np.zeros(100, np.uint8)
    slots = [(10, 20), (40, 50), (20, 30)]
    lent = lend((str(slot), torch.from_numpy(buffer[slice(*slot)])) for slot in slots)
    kept = list(lent)
    found = [is_lent(torch.from_numpy(buffer[at : at + 1])) for at in range(100)]
    assert found == [10 <= at < 30 or 40 <= at < 50 for at in range(100)] and kept
    assert is_lent(torch.from_numpy(buffer[0:11])) and is_lent(torch.from_numpy(buffer[30:41]))
    assert not is_lent(torch.from_numpy(buffer[30:40]))


def test_two_streams_are_told_apart(files: Files) -> None:
    lent, other = lend(stream(files.path, memory_limit=0)), stream(files.path, memory_limit=0)
    for (_, mine), (_, theirs) in zip(lent, other, strict=True):
        assert is_lent(mine.view(-1)) and not is_lent(theirs.view(-1))


def test_a_stream_that_is_broken_off_ends_its_loan(files: Files) -> None:
    lent = lend(stream(files.path, memory_limit=0))
    tensor = next(lent)[1].view(-1)
    lent.close()
    assert is_lent(tensor)
    reference = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
    del tensor
    assert reference.expired()  # the loan does not keep it


def test_lend_yields_the_stream_unchanged(files: Files) -> None:
    pairs = zip(lend(stream(files.path, memory_limit=0)), itertools.count())
    assert [name for (name, tensor), _ in pairs if same_bytes(tensor, files.stored[name])] == list(
        name for name, _ in stream(files.path, memory_limit=0)
    )
