"""The stream: right bytes while they are borrowed, clear refusals, and an environment left as it was."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gptoss_lab.weights import checkpoint, streaming
from gptoss_lab.weights.checkpoint import CheckpointError
from gptoss_lab.weights.compare import differing, same_bytes
from gptoss_lab.weights.streaming import StreamingError, is_streamed, parse_size, stream, stream_uris

LIMIT, CONCURRENCY = "RUNAI_STREAMER_MEMORY_LIMIT", "RUNAI_STREAMER_CONCURRENCY"
EIGHT = {f"t{i}": torch.full((1000,), float(i)) for i in range(8)}  # 4000 bytes each


def write(folder: Path, *shards: dict[str, torch.Tensor]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"model-{number}.safetensors" for number in range(len(shards))]
    for file, tensors in zip(files, shards, strict=True):
        save_file(tensors, file)
    return files


def copies(files, **options) -> dict[str, torch.Tensor]:
    """Stream, copy each tensor while it is good; a name twice would be lost here, so count."""
    items = [(name, tensor.clone()) for name, tensor in stream(files, **options)]
    assert len({name for name, _ in items}) == len(items)
    return dict(items)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RUNAI_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("limit", [None, -1, 0, 4000, "8 kB", "12KiB", 32000])
@pytest.mark.parametrize("concurrency", [None, 1, 4])
def test_every_tensor_is_right_while_it_is_borrowed(tmp_path: Path, limit, concurrency) -> None:
    shards = [dict(list(EIGHT.items())[:5]), dict(list(EIGHT.items())[5:])]
    seen = copies(write(tmp_path, *shards), memory_limit=limit, concurrency=concurrency)
    assert differing(EIGHT, seen) == []


def test_a_small_buffer_overwrites_views_that_are_kept(tmp_path: Path) -> None:
    kept = dict(stream(write(tmp_path, EIGHT), memory_limit=0))
    assert differing(EIGHT, kept) == sorted(EIGHT)[:-1]
    assert all(same_bytes(tensor, EIGHT["t7"]) for tensor in kept.values())


def test_each_tensor_is_marked_and_what_is_derived_from_it_is_not(tmp_path: Path) -> None:
    for _, tensor in stream(write(tmp_path, EIGHT, {"empty": torch.zeros(0)})):
        assert is_streamed(tensor) and getattr(tensor, streaming.STREAMED) is True
        assert not is_streamed(tensor.detach()) and not is_streamed(tensor.view(-1))
    assert not is_streamed(torch.zeros(3))


def test_a_folder_and_a_checkpoint_stream_in_the_order_of_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    checkpoint.write_checkpoint(folder, EIGHT, {}, shard_limit=12000)
    stored = checkpoint.read_checkpoint(folder)
    expected = [name for name, _ in stream(stored.files, concurrency=1)]
    assert expected == sorted(EIGHT)
    for source in (folder, str(folder), stored, [str(file) for file in stored.files]):
        assert [name for name, _ in stream(source, concurrency=1)] == expected


def test_the_device_may_be_a_torch_device(tmp_path: Path) -> None:
    kept = dict(stream(write(tmp_path, EIGHT), memory_limit=0, device=torch.device("cpu")))
    assert len(differing(EIGHT, kept)) == 7  # still views: a CPU device is no reason to copy


def test_no_reference_of_ours_keeps_a_tensor(tmp_path: Path) -> None:
    iterator = stream(write(tmp_path, EIGHT), memory_limit=0)
    gone = [weakref.ref(next(iterator)[1])() for _ in range(3)]
    assert gone == [None] * 3


# --- the limit ---


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0), (-1, -1), ("-1", -1), ("unlimited", -1), ("0", 0), (1158266880, 1158266880),
        ("1158266880", 1158266880), ("1GiB", 2**30), ("512 KiB", 2**19), ("4GB", 4 * 10**9),
        ("1.5MiB", 3 * 2**19), (" 7 B ", 7), ("2tib", 2**41), ("40_000", 40000), ("4gb", 4 * 10**9),
        (np.int64(5), 5), ("0.3GB", 3 * 10**8),
    ],
)  # fmt: skip
def test_sizes(text, size: int) -> None:
    assert parse_size(text) == size and type(parse_size(text)) is int


@pytest.mark.parametrize(
    "text", ["", " ", "4 parsecs", "GiB", "-2", -2, "1e9", "1.5", "0.3B", "1G", 1.0, True, None, b"1"]
)
def test_what_is_no_size_is_refused_with_the_value_and_the_remedy(text) -> None:
    with pytest.raises(StreamingError) as refused:
        parse_size(text)
    assert repr(text) in str(refused.value) and "1GiB" in str(refused.value)


@pytest.mark.parametrize("limit", ["", "4 parsecs", -2])
def test_a_bad_limit_is_refused_by_the_call_before_anything_is_read(tmp_path: Path, limit) -> None:
    with pytest.raises(StreamingError, match="memory_limit"):
        stream(write(tmp_path, EIGHT), memory_limit=limit)


def test_a_limit_below_the_largest_tensor_names_tensor_need_limit_and_remedy(tmp_path: Path) -> None:
    files = write(tmp_path, EIGHT, {"large": torch.zeros(5000)})
    with pytest.raises(StreamingError) as refused:
        stream(files, memory_limit=19999)
    for part in ("'large'", "20000", "19999", "raise memory_limit", "0"):
        assert part in str(refused.value)
    assert len(copies(files, memory_limit=20000)) == 9


def test_a_limit_below_the_header_names_the_file(tmp_path: Path) -> None:
    files = write(tmp_path, {"a": torch.zeros(1)}, {f"b{i}": torch.zeros(1) for i in range(9)})
    header = int.from_bytes(files[1].read_bytes()[:8], "little")
    with pytest.raises(StreamingError) as refused:
        stream(files, memory_limit=header - 1)
    assert str(files[1]) in str(refused.value) and str(header) in str(refused.value)
    assert len(copies(files, memory_limit=header)) == 10


def test_without_a_limit_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path, EIGHT)
    monkeypatch.setenv(LIMIT, "0")
    assert len(differing(EIGHT, dict(stream(files)))) == 7
    assert len(differing(EIGHT, dict(stream(files, memory_limit=-1)))) == 0
    monkeypatch.setenv(LIMIT, "3999")
    with pytest.raises(StreamingError, match="3999"):
        stream(files)
    for nonsense in ("4GB", "", "-2"):
        monkeypatch.setenv(LIMIT, nonsense)
        with pytest.raises(StreamingError, match=f"{LIMIT} is '{nonsense}'"):
            stream(files)


@pytest.mark.parametrize("concurrency", [0, -1, True])
def test_a_concurrency_that_is_no_number_of_threads_is_refused(tmp_path: Path, concurrency) -> None:
    with pytest.raises(StreamingError, match=f"concurrency={concurrency}"):
        stream(write(tmp_path, EIGHT), concurrency=concurrency)


# --- the environment and the streamer's life ---


def snapshot() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("RUNAI_")}


@pytest.mark.parametrize("before", [{}, {LIMIT: "123456", CONCURRENCY: "2"}])
def test_the_environment_is_restored_however_a_stream_ends(tmp_path: Path, monkeypatch, before) -> None:
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    files = write(tmp_path, EIGHT)

    def check() -> None:
        assert snapshot() == before

    never_started = stream(files, memory_limit=0, concurrency=1)
    check()
    del never_started
    iterator = stream(files, memory_limit=0, concurrency=1)
    next(iterator)
    check()  # while it runs
    iterator.close()
    check()
    abandoned = stream(files, memory_limit=0, concurrency=1)
    next(abandoned)
    del abandoned
    check()
    list(stream(files, memory_limit=0, concurrency=1))
    check()
    with pytest.raises(StreamingError):
        list(broken_off(files))
    check()


def broken_off(files: list[Path]):
    """A stream whose file loses its end after the checks."""
    iterator = stream(files, memory_limit=0, concurrency=1)
    with files[0].open("r+b") as file:
        file.truncate(files[0].stat().st_size // 2)
    return iterator


def test_an_error_of_the_streamer_names_the_file(tmp_path: Path) -> None:
    files = write(tmp_path, EIGHT)
    seen = []
    with pytest.raises(StreamingError) as error:
        for name, _ in broken_off(files):
            seen.append(name)
    assert str(files[0]) in str(error.value) and len(seen) < 8


def reading_threads() -> int:
    return len(os.listdir("/proc/self/task")) - threading.active_count()


def test_the_concurrency_is_the_number_of_threads_and_they_end_with_the_stream(tmp_path: Path) -> None:
    files = write(tmp_path, EIGHT)
    idle = reading_threads()
    for concurrency in (1, 3):
        iterator = stream(files, concurrency=concurrency, memory_limit=0)
        assert reading_threads() == idle  # nothing is opened before the first tensor
        next(iterator)
        assert reading_threads() == idle + concurrency
        del iterator
        assert reading_threads() == idle


def test_two_streams_may_run_side_by_side_with_their_own_limits(tmp_path: Path) -> None:
    files = write(tmp_path, EIGHT)
    small, large = stream(files, memory_limit=0, concurrency=1), stream(files, memory_limit=-1, concurrency=1)
    pairs = list(zip(small, large, strict=True))
    assert len(differing(EIGHT, dict(one for one, _ in pairs))) == 7
    assert differing(EIGHT, dict(other for _, other in pairs)) == []


def test_breaking_off_and_streaming_again_works(tmp_path: Path) -> None:
    files = write(tmp_path, EIGHT)
    for _ in range(3):
        iterator = stream(files, memory_limit=0)
        next(iterator), next(iterator)
        del iterator
    assert differing(EIGHT, copies(files, memory_limit=0)) == []


# --- files that cannot be trusted ---


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("missing", "cannot be read"),
        ("truncated", "truncated"),
        ("header", "header is cut"),
        ("json", "not JSON"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_before_the_first_tensor(tmp_path: Path, fault, says) -> None:
    good, bad = write(tmp_path, {"a": torch.zeros(4)}, EIGHT)
    content = bad.read_bytes()
    if fault == "missing":
        bad.unlink()
    else:
        broken = {"truncated": content[:-1], "header": content[:20], "json": content[:8] + b"!" + content[9:]}
        bad.write_bytes(broken[fault])
    with pytest.raises(CheckpointError, match=says) as refused:
        stream([good, bad])
    assert str(bad) in str(refused.value)


def test_a_name_that_comes_twice_is_refused_with_both_files(tmp_path: Path) -> None:
    one, other = write(tmp_path, {"a": torch.zeros(4), "b": torch.ones(4)}, {"b": torch.zeros(4)})
    with pytest.raises(StreamingError) as refused:
        stream([one, other])
    assert "'b'" in str(refused.value) and str(one) in str(refused.value) and str(other) in str(refused.value)
    with pytest.raises(StreamingError, match="'a' is there twice"):
        stream([one, one])


# --- tensors without elements, odd sizes ---

EMPTY, A, B = torch.zeros(0, 4), torch.arange(1000.0), torch.arange(7, dtype=torch.uint8)


@pytest.mark.parametrize("limit", [-1, 0, 4000, 8000, None])
@pytest.mark.parametrize(
    "shards",
    [
        [{}, {"a": A}],
        [{"a": A}, {}, {"b": B}],
        [{"a": A}, {}],
        [{}],
        [{"e": EMPTY}],
        [{"a": A}, {"e": EMPTY}, {"b": B}],
        [{"a": A, "e": EMPTY, "z": A + 1}],
        [{"e": EMPTY, "z": A}],
        [{"a": A, "z": EMPTY}, {"b": A + 1}],
        [{"odd": B}, {"a": A}, {"c": A.double()[:100]}],
        [{"odd": B}, {"x": torch.tensor(3.0)}, {"n": torch.tensor([True])}, {"h": A.bfloat16()}],
    ],
)
def test_shards_without_tensors_empty_tensors_and_odd_sizes_are_right(tmp_path: Path, shards, limit) -> None:
    expected = {name: tensor for shard in shards for name, tensor in shard.items()}
    assert differing(expected, copies(write(tmp_path, *shards), memory_limit=limit)) == []


def test_the_one_layout_that_the_streamer_miscounts_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path, {"a": A}, {"e": EMPTY, "z": A + 1, "zz": B})
    with pytest.raises(StreamingError) as refused:
        stream(files, memory_limit=0)
    assert "'e'" in str(refused.value) and "'z'" in str(refused.value) and "-1" in str(refused.value)
    assert len(copies(files, memory_limit=-1)) == 4
    assert len(copies(files, memory_limit=8000)) == 4


def test_that_layout_is_indeed_miscounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a newer streamer is installed, and the refusal above may go."""
    from runai_model_streamer import SafetensorsStreamer

    monkeypatch.setenv(LIMIT, "0")
    files = write(tmp_path, {"a": A}, {"e": EMPTY, "z": A + 1, "zz": B})
    seen = {}
    with pytest.raises(RuntimeError), SafetensorsStreamer() as streamer:
        streamer.stream_files([str(file) for file in files])
        for name, tensor in streamer.get_tensors():
            seen[name] = tensor
    assert "z" not in seen


# --- addresses (tests/weights/test_object_store.py streams from real ones)


@pytest.mark.parametrize("place", ["model.safetensors", Path("model.safetensors"), "s3:/models/model.safetensors"])
def test_what_is_no_address_is_refused_at_once(place) -> None:
    with pytest.raises(StreamingError, match="is no address such as s3://bucket/key: use `stream` for files"):
        stream_uris([place])


@pytest.mark.parametrize("options", [{"memory_limit": "4 gb or so"}, {"memory_limit": -2}, {"concurrency": 0}])
def test_arguments_of_an_address_are_checked_at_once(options) -> None:
    with pytest.raises(StreamingError, match="memory_limit=|concurrency="):
        stream_uris(["s3://models/model.safetensors"], **options)


def test_no_address_is_no_tensor() -> None:
    assert list(stream_uris([])) == []
