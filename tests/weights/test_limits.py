"""What the environment sets for the streamer is read as the streamer reads it, or refused by name."""

from __future__ import annotations

import pytest
import torch
from runai_model_streamer import SafetensorsStreamer
from safetensors.torch import save_file

from gptoss_lab.weights.limits import (
    CONCURRENCY_VARIABLE,
    DEFAULT_MEMORY_LIMIT,
    LIMIT_VARIABLE,
    StreamingError,
    resolve_concurrency,
    resolve_limit,
)

GOOD, BAD = ["1", "16", " 4", "+4", "007"], ["abc", "", "0", "00", "-3", "4.0", "1_0", "4 threads", "4 "]


@pytest.mark.parametrize("value", GOOD)
def test_a_number_of_threads_in_the_environment_is_left_there(monkeypatch, value):
    monkeypatch.setenv(CONCURRENCY_VARIABLE, value)
    assert resolve_concurrency(None) is None


@pytest.mark.parametrize("value", BAD)
def test_anything_else_in_the_environment_is_named_with_its_value_and_the_remedy(monkeypatch, value):
    monkeypatch.setenv(CONCURRENCY_VARIABLE, value)
    with pytest.raises(StreamingError) as error:
        resolve_concurrency(None)
    assert CONCURRENCY_VARIABLE in str(error.value) and repr(value) in str(error.value)
    assert "unset it" in str(error.value)


@pytest.mark.parametrize("value", [*GOOD, *BAD])
def test_the_streamer_reads_the_environment_in_the_same_way(tmp_path, monkeypatch, value):
    save_file({"a": torch.ones(8)}, tmp_path / "one.safetensors")
    monkeypatch.setenv(CONCURRENCY_VARIABLE, value)
    try:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(tmp_path / "one.safetensors")])
            read = [name for name, _ in streamer.get_tensors()]
    except ValueError:
        read = []
    assert read == (["a"] if value in GOOD else [])


def test_an_argument_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv(CONCURRENCY_VARIABLE, "abc")
    assert resolve_concurrency(3) == 3
    monkeypatch.delenv(CONCURRENCY_VARIABLE)
    assert resolve_concurrency(None) is None


@pytest.mark.parametrize("concurrency", [0, -1, True, False])
def test_an_argument_that_is_no_number_of_threads_is_refused(concurrency):
    with pytest.raises(StreamingError, match=f"concurrency={concurrency}"):
        resolve_concurrency(concurrency)


@pytest.mark.parametrize(("value", "limit"), [(None, DEFAULT_MEMORY_LIMIT), ("4096", 4096), ("-1", -1), ("0", 0)])
def test_the_limit_of_the_environment_is_taken(monkeypatch, value, limit):
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(LIMIT_VARIABLE, value)
    assert resolve_limit(None) == limit
    assert resolve_limit(512) == 512


@pytest.mark.parametrize("value", ["1GiB", "", "-2", "4.5"])
def test_a_limit_that_the_streamer_cannot_read_is_named(monkeypatch, value):
    monkeypatch.setenv(LIMIT_VARIABLE, value)
    with pytest.raises(StreamingError, match=LIMIT_VARIABLE) as error:
        resolve_limit(None)
    assert repr(value) in str(error.value) and "unset it" in str(error.value)
