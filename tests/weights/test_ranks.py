"""Ranks lose what the plan of their rounds says, own copies are right on each, and no process stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from gptoss_lab.course.lab import CAPITALS
from gptoss_lab.weights import ranks
from gptoss_lab.weights.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from gptoss_lab.weights.limits import StreamingError
from gptoss_lab.weights.object_store import INSTALL, ObjectStore, what_is_missing
from gptoss_lab.weights.plan import Slot
from gptoss_lab.weights.ranks import MOST_IN_A_ROUND, RanksError, lost_names, plan_rounds, run_ranks

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file

from processes import running, wait_until  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return read_checkpoint(CAPITALS)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """More small tensors than fit two rounds of two ranks, of odd sizes and two dtypes, in three files."""
    folder = tmp_path_factory.mktemp("many") / "checkpoint"
    values = torch.randint(0, 256, (5000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    tensors = {f"t{at:04}": values[at : at + 1 + at * 37 % 900].clone() for at in range(2 * MOST_IN_A_ROUND + 90)}
    tensors |= {
        name: tensor[: len(tensor) // 2 * 2].view(torch.bfloat16) for name, tensor in list(tensors.items())[7::3]
    }
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    write_checkpoint(folder, tensors, {}, shard_limit=100_000)
    return read_checkpoint(folder)


def predicted(checkpoint: Checkpoint, count: int, buffer_bytes: int) -> list[list[str]]:
    rounds = plan_rounds(checkpoint, count, buffer_bytes)
    return [lost_names(rounds, rank) for rank in range(count)]


# ---- the plan, and the real ranks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "buffer_bytes"), [(2, 2**30), (3, 2**30), (3, 267_144)])
def test_each_rank_loses_what_the_plan_says(checkpoint: Checkpoint, count: int, buffer_bytes: int) -> None:
    results = run_ranks(checkpoint, count, buffer_bytes=buffer_bytes)
    assert [result.wrong for result in results] == predicted(checkpoint, count, buffer_bytes)
    rounds = plan_rounds(checkpoint, count, buffer_bytes)
    order = [slot.name for row in rounds for batch in row for slot in batch]
    assert [result.names for result in results] == [order] * count
    assert [(result.rank, result.buffers, result.device) for result in results] == [(r, 2, "cpu") for r in range(count)]
    assert sorted(order) == sorted(checkpoint.tensors)


def test_a_round_takes_so_many_tensors_and_no_more(many: Checkpoint) -> None:
    rounds = plan_rounds(many, 2)
    assert len(rounds) > 1 and max(len(batch) for batch in rounds[0]) == MOST_IN_A_ROUND
    results = run_ranks(many, 2)
    assert [result.wrong for result in results] == predicted(many, 2, 2**30)
    assert all(result.wrong for result in results)


def test_host_copies_are_right_on_every_rank_and_counted(checkpoint: Checkpoint) -> None:
    assert all(predicted(checkpoint, 2, 2**19))  # views would be wrong here
    results = run_ranks(checkpoint, 2, buffer_bytes=2**19, keep="host copies")
    assert [result.wrong for result in results] == [[], []]
    assert [result.copied_bytes for result in results] == [checkpoint.total_bytes] * 2


@pytest.mark.skipif(bool(what_is_missing()), reason=f"the extra s3 is not installed: {INSTALL}")
def test_three_ranks_lose_the_same_over_s3(checkpoint: Checkpoint) -> None:
    """The order over a network is free. It does not matter here: each part ends behind the start of any last tensor."""
    (row,) = plan_rounds(checkpoint, 3)
    padded = [sum(-(-slot.nbytes // ranks.ALIGNMENT) * ranks.ALIGNMENT for slot in batch) for batch in row]
    shortest = [size - ranks.ALIGNMENT + 1 for size in padded]  # the end of a part whose last tensor is one byte
    assert padded[0] - ranks.ALIGNMENT < min(shortest[1], shortest[2]) and padded[1] - ranks.ALIGNMENT < shortest[2]
    with ObjectStore() as store:
        uris = store.upload(checkpoint.files, "capitals")
        results = run_ranks(checkpoint, 3, uris=uris, environment=store.env())
    assert [result.wrong for result in results] == predicted(checkpoint, 3, 2**30)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("keep", ["views", "device copies", "host copies"])
def test_gpus_lose_the_same_through_nccl_and_yield_device_tensors(checkpoint: Checkpoint, keep: str) -> None:
    results = run_ranks(checkpoint, 2, buffer_bytes=2**19, keep=keep, device="cuda")
    expected = predicted(checkpoint, 2, 2**19) if keep == "views" else [[], []]
    assert [result.wrong for result in results] == expected
    assert [(result.device, result.buffers) for result in results] == [("cuda", 2)] * 2


# ---- by hand -------------------------------------------------------------------------------------------------------


def test_slots_are_aligned_and_the_largest_tensor_always_fits(checkpoint: Checkpoint) -> None:
    for buffer_bytes in (1, 300_000, 2**30):
        largest = max(stored.spec.nbytes for stored in checkpoint.tensors.values())
        for at, row in enumerate(plan_rounds(checkpoint, 3, buffer_bytes)):
            for batch in row:
                assert all(slot.start % ranks.ALIGNMENT == 0 and slot.request == at for slot in batch)
                assert all(before.stop <= after.start for before, after in zip(batch, batch[1:], strict=False))
                assert all(slot.stop <= max(buffer_bytes, largest) for slot in batch)
                assert all(slot.nbytes == checkpoint.tensors[slot.name].spec.nbytes for slot in batch)


def test_a_view_is_lost_if_a_later_batch_in_its_buffer_covers_it() -> None:
    rounds = [
        [[Slot("a", 0, 0, 4), Slot("b", 0, 4, 8)], [Slot("c", 0, 0, 6)], [Slot("d", 0, 0, 2)]],
        [[Slot("e", 1, 0, 1)], [], [Slot("f", 1, 4, 5)]],
    ]
    assert lost_names(rounds, 0) == ["a", "c"]  # a by e; c by d and f
    assert lost_names(rounds, 1) == ["a", "b", "d"]  # a by d and e, b by f, d by e
    assert lost_names(rounds, 2) == ["a", "b", "c"]  # a and b by c, c by e


# ---- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [plan_rounds, run_ranks])
@pytest.mark.parametrize("count", [1, 0, -1])
def test_one_rank_is_refused(checkpoint: Checkpoint, ask, count: int) -> None:
    with pytest.raises(StreamingError, match=f"ranks={count}"):
        ask(checkpoint, count)


def test_an_unknown_way_to_keep_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(RanksError, match="keep='clones' is unknown: choose from views, device copies, host copies"):
        run_ranks(checkpoint, 2, keep="clones")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which ranks meet, in the command line of each."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_rank_that_fails_is_told_and_the_others_end(checkpoint: Checkpoint, here: Path) -> None:
    with pytest.raises(RanksError, match=r"(?s)one of 2 ranks failed with exit code 1.*File access error"):
        run_ranks(checkpoint, 2, uris=["absent.safetensors"])
    assert running(here) == [] and list(here.iterdir()) == []


def test_ranks_that_take_too_long_are_ended(checkpoint: Checkpoint, here: Path) -> None:
    with pytest.raises(RanksError, match=r"did not end within 0\.1 s"):
        run_ranks(checkpoint, 2, seconds=0.1)
    assert running(here) == [] and list(here.iterdir()) == []


PARENT = """
from gptoss_lab.course.lab import CAPITALS
from gptoss_lab.weights.checkpoint import read_checkpoint
from gptoss_lab.weights.ranks import run_ranks
while True:
    run_ranks(read_checkpoint(CAPITALS), 3)
"""


def test_ranks_end_with_their_parent_and_leave_no_file(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(CAPITALS.parents[1]), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=environment)
    try:
        assert wait_until(
            lambda: len(running(str(tmp_path))) == 4, seconds=120
        )  # one that imports, and its three forks
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert wait_until(lambda: not running(str(tmp_path)) and not list(tmp_path.iterdir()))
