"""The plan against the real streamer: the requests, each tensor's slot, and what is overwritten."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from runai_model_streamer import SafetensorsStreamer
from safetensors.torch import save_file

from gptoss_lab.weights.checkpoint import (
    GPT_OSS_20B,
    GPT_OSS_120B,
    TINY,
    TensorSpec,
    read_checkpoint,
    shard,
    tensor_specs,
    write_random_checkpoint,
)
from gptoss_lab.weights.compare import differing, raw_bytes
from gptoss_lab.weights.streaming import Slot, StreamingError, plan, stream

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.uint8,
    torch.bool,
    torch.int16,
    torch.float8_e4m3fn,
]


def write(folder: Path, shards: list[dict[str, torch.Tensor]]) -> list[Path]:
    files = [folder / f"model-{number}.safetensors" for number in range(len(shards))]
    for file, tensors in zip(files, shards, strict=True):
        save_file(tensors, file)
    return files


def run_streamer(files: list[Path], limit: int, concurrency: int):
    """Drain the stream. Returns the views, copies made in time, and the views' addresses."""
    views, right = {}, {}
    for name, tensor in stream(files, memory_limit=limit, concurrency=concurrency):
        views[name], right[name] = tensor, tensor.clone()
    return views, right, {name: tensor.data_ptr() for name, tensor in views.items() if tensor.numel()}


def bare_streamer(files: list[Path], limit: int) -> dict[str, torch.Tensor]:
    """What the streamer yields without our checks, until it fails."""
    seen = {}
    with (
        pytest.MonkeyPatch.context() as patch,
        suppress(RuntimeError, ValueError, IndexError),
        SafetensorsStreamer() as streamer,
    ):
        patch.setenv("RUNAI_STREAMER_MEMORY_LIMIT", str(limit))
        streamer.stream_files([str(file) for file in files])
        for name, tensor in streamer.get_tensors():
            seen[name] = tensor.clone()
    return seen


@st.composite
def shards_of_tensors(draw) -> list[dict[str, torch.Tensor]]:
    """One to four shards of up to six tensors: any dtype, many sizes; some have no elements.

    Every byte is random, so two tensors of a few bytes or more differ.
    """
    seed = draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    shards, count = [], 0
    for _ in range(draw(st.integers(1, 4))):
        shards.append({})
        for _ in range(draw(st.integers(0, 6))):
            dtype = draw(st.sampled_from(DTYPES))
            size = draw(st.sampled_from([0, 1, 7, 64, 64, 64, 200, 257, 512, 1000]))
            # Prefixes shuffle the order of the names against the order of making.
            name = f"{draw(st.sampled_from('abc'))}{count}"
            raw = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8, generator=generator)
            shards[-1][name] = raw.remainder(2).to(torch.bool) if dtype is torch.bool else raw.view(dtype)
            count += 1
    return shards


@given(shards_of_tensors(), st.sampled_from([1, 4, 16]), st.data())
@settings(max_examples=250, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_the_plan_is_what_the_streamer_does(shards, concurrency: int, data: st.DataObject) -> None:
    expected = {name: tensor for tensors in shards for name, tensor in tensors.items()}
    total = sum(tensor.nbytes for tensor in expected.values())
    largest = max([tensor.nbytes for tensor in expected.values()], default=0)
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), shards)
        headers = max([8] + [int.from_bytes(file.read_bytes()[:8], "little") for file in files])
        lowest = max(largest, headers, 1)
        limit = data.draw(st.one_of(st.sampled_from([0, -1]), st.integers(lowest, max(lowest, total) + 10)))
        try:
            planned = plan(files, limit)
        except StreamingError:
            event("refused: the streamer would miscount")
            with pytest.raises(StreamingError):
                stream(files, memory_limit=limit)
            assert differing(expected, bare_streamer(files, limit)) != []
            return
        views, right, addresses = run_streamer(files, limit, concurrency)
    event(f"requests: {min(len(planned.requests), 6)}, overwritten: {bool(planned.overwritten)}")
    assert differing(expected, right) == []
    assert [slot.name for slot in planned.slots if slot.name not in views] == []
    if not addresses:
        assert planned.buffer_bytes == 0
        return
    # All views lie in one buffer at the offsets of the plan: addresses differ by the same as slots.
    bases = {addresses[slot.name] - slot.start for slot in planned.slots if slot.nbytes}
    assert len(bases) == 1
    # What the buffer holds at the end, byte for byte, by the plan's own story of who wrote where.
    buffer = bytearray(planned.buffer_bytes)
    for slot in planned.slots:
        buffer[slot.start : slot.stop] = raw_bytes(expected[slot.name])
    for slot in planned.slots:
        assert raw_bytes(views[slot.name]) == bytes(buffer[slot.start : slot.stop])
    # A view that the plan calls overwritten may hold equal bytes by chance, if few of its bytes were lost.
    wrong = set(differing(expected, views))
    assert wrong <= set(planned.overwritten)
    for name in set(planned.overwritten) - wrong:
        slot = planned.slot(name)
        assert raw_bytes(expected[name]) == bytes(buffer[slot.start : slot.stop])
    for slot in planned.slots:
        assert bool(planned.overwriters(slot.name)) == (slot.name in planned.overwritten)


TWELVE = [TensorSpec(f"t{i:02}", "U8", (size,)) for i, size in enumerate([12288, 4096, 8192, 12288] * 2 + [6144] * 4)]


def test_slots_of_a_buffer_drawn_by_hand() -> None:
    specs = [TensorSpec(name, "U8", (size,)) for name, size in [("a", 4), ("b", 3), ("c", 2), ("d", 6), ("e", 1)]]
    planned = plan(specs, 7)
    assert planned.slots == (
        Slot("a", 0, 0, 4), Slot("b", 0, 4, 7), Slot("c", 1, 0, 2), Slot("d", 2, 0, 6), Slot("e", 2, 6, 7),
    )  # fmt: skip
    assert [[slot.name for slot in request] for request in planned.requests] == [
        ["a", "b"],
        ["c"],
        ["d", "e"],
    ]
    assert planned.overwritten == ["a", "b", "c"]
    assert [slot.name for slot in planned.overwriters("a")] == ["c", "d"]
    assert [slot.name for slot in planned.overwriters("b")] == ["d", "e"]
    assert planned.overwriters("e") == []
    assert (planned.buffer_bytes, planned.total_bytes, planned.overwritten_bytes) == (7, 16, 4 + 3 + 2)
    assert planned.slot("d").nbytes == 6


def test_a_view_may_be_damaged_in_part() -> None:
    planned = plan([TensorSpec("a", "U8", (10,)), TensorSpec("b", "U8", (3,))], 10)
    assert planned.overwritten == ["a"] and planned.overwritten_bytes == 3


def test_an_earlier_request_counts_by_the_furthest_of_the_later_ones() -> None:
    """The last request reaches only 2 bytes; `b` is lost to the one before it."""
    sizes = {"a": 4, "b": 4, "c": 7, "d": 2}
    planned = plan([TensorSpec(name, "U8", (size,)) for name, size in sizes.items()], 8)
    assert [slot.request for slot in planned.slots] == [0, 0, 1, 2]
    assert planned.overwritten == ["a", "b", "c"] and planned.overwritten_bytes == 4 + 3 + 2


def test_a_limit_that_all_tensors_fill_to_the_byte_overwrites_nothing() -> None:
    total = plan(TWELVE, -1).total_bytes
    assert plan(TWELVE, total).overwritten == []
    assert len(plan(TWELVE, total).requests) == 1
    assert len(plan(TWELVE, total - 1).overwritten) >= 1
    assert plan(TWELVE, "1GiB").buffer_bytes == total


def test_0_is_the_size_of_the_largest_tensor() -> None:
    assert plan(TWELVE, 0).buffer_bytes == plan(TWELVE, 12288).buffer_bytes == 12288
    assert plan(TWELVE, 0).slots == plan(TWELVE, 12288).slots


def test_gpt_oss_20b_at_the_smallest_limit_loses_every_dense_tensor() -> None:
    shards = shard(tensor_specs(GPT_OSS_20B))
    planned = plan(shards, 1158266880)
    assert len(planned.slots) == 459 and planned.total_bytes == 13761264768
    assert (len(planned.requests), len(planned.overwritten)) == (13, 448)
    kept = {slot.name for slot in planned.slots} - set(planned.overwritten)
    assert len(kept) == 11 and all(".experts" in name for name in kept)
    assert plan(shards, 0).slots == planned.slots
    with pytest.raises(StreamingError, match=r"1158266880 bytes, the limit is 1158266879"):
        plan(shards, 1158266879)


def test_the_default_limit_hides_the_fault_at_20b_and_not_at_120b(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNAI_STREAMER_MEMORY_LIMIT", raising=False)
    assert plan(shard(tensor_specs(GPT_OSS_20B))).overwritten == []
    large = plan(shard(tensor_specs(GPT_OSS_120B)))
    assert large.memory_limit == 40_000_000_000 and len(large.requests) == 2
    # The second request holds what did not fit the first, and overwrites as much of it.
    second = sum(slot.nbytes for slot in large.requests[1])
    assert large.overwritten_bytes == second and 25.2e9 < second < 25.6e9
    assert all(slot.request == 0 for slot in map(large.slot, large.overwritten))


def test_files_a_folder_a_checkpoint_and_specs_give_one_plan(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write_random_checkpoint(folder, TINY, shard_limit=1_000_000)
    stored = read_checkpoint(folder)
    planned = plan(shard(tensor_specs(TINY), 1_000_000), 0)
    assert len(planned.overwritten) == 148 and len(planned.slots) == 155
    for source in (folder, str(folder), stored, stored.files, [str(file) for file in stored.files]):
        assert plan(source, 0) == planned
    assert len(plan(folder, planned.total_bytes - 1).overwritten) == 3


def test_the_plan_reads_no_tensor(tmp_path: Path) -> None:
    """The files are sparse: they have their sizes and headers, and nothing behind those."""
    files = write(tmp_path, [{"a": torch.ones(1 << 20)}, {"b": torch.ones(1 << 18)}])
    before = plan(files, 0)
    for file in files:
        size, header = (
            file.stat().st_size,
            file.read_bytes()[: 8 + int.from_bytes(file.read_bytes()[:8], "little")],
        )
        file.write_bytes(header)
        with file.open("r+b") as handle:
            handle.truncate(size)
    assert plan(files, 0) == before


def test_a_plan_refuses_what_a_stream_refuses(tmp_path: Path) -> None:
    a, b = TensorSpec("a", "F32", (4,)), TensorSpec("b", "F32", (2,))
    with pytest.raises(StreamingError, match=r"tensor 'a' needs 16 bytes, the limit is 15: raise memory_limit"):
        plan([b, a], 15)
    with pytest.raises(StreamingError, match="'a' is there twice"):
        plan([[a], [b, a]], 0)
    with pytest.raises(StreamingError, match="'empty' has no elements"):
        plan([[a], [TensorSpec("empty", "F32", (0,)), TensorSpec("z", "F32", (2,))]], 16)
    with pytest.raises(StreamingError, match="'c' is not among the 2"):
        plan([a, b], 0).slot("c")


def test_nothing_to_stream_is_a_plan_with_no_requests() -> None:
    planned = plan([], 0)
    assert (planned.requests, planned.overwritten, planned.buffer_bytes, planned.total_bytes) == (
        [],
        [],
        0,
        0,
    )
