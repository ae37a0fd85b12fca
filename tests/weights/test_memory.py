"""Memory over time: what is counted as host and as device, and the strategies' peaks apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from gptoss_lab.weights import memory
from gptoss_lab.weights.checkpoint import read_checkpoint, tensor_specs, write_random_checkpoint
from gptoss_lab.weights.memory import (
    MEASURED,
    MeasurementError,
    Sampler,
    SharedMemory,
    measure,
    resident_bytes,
)

MIB = 2**20
SMALL = dataclasses.replace(MEASURED, num_hidden_layers=2, vocab_size=16384)
LIMIT = 17 * MIB  # the embedding takes 16
SLACK = 5 * MIB  # the allocator's and the interpreter's own movement
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="shared memory stands for a device without a GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "small"
    write_random_checkpoint(folder, SMALL, shard_limit=30 * MIB)
    return folder


def test_the_measured_checkpoint_has_256_mib_and_a_quarter_is_not_experts() -> None:
    specs = tensor_specs(MEASURED)
    total = sum(spec.nbytes for spec in specs)
    assert abs(total - 256 * MIB) < MIB
    assert 0.2 < sum(spec.nbytes for spec in specs if not spec.is_expert) / total < 0.35


def test_host_memory_is_anonymous_and_the_stand_in_is_shared() -> None:
    anonymous, shared = resident_bytes("RssAnon"), resident_bytes("RssShmem")
    host = np.ones(64 * MIB, dtype=np.uint8)
    assert abs(resident_bytes("RssAnon") - anonymous - 64 * MIB) < MIB
    assert abs(resident_bytes("RssShmem") - shared) < MIB
    like = torch.empty(3, 5, MIB, dtype=torch.bfloat16)
    device = SharedMemory().empty_like(like).fill_(1)
    assert device.shape == like.shape and device.dtype == like.dtype
    assert abs(resident_bytes("RssShmem") - shared - 30 * MIB) < MIB
    assert abs(resident_bytes("RssAnon") - anonymous - 64 * MIB) < MIB
    del host, device
    assert abs(resident_bytes("RssShmem") - shared) < MIB


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
def test_the_stand_in_holds_tensors_of_any_shape(shape) -> None:
    tensor = torch.ones(shape)
    assert torch.equal(SharedMemory().empty_like(tensor).copy_(tensor), tensor)


def test_the_sampler_sees_a_peak_that_is_gone_at_the_end() -> None:
    sampler = Sampler(SharedMemory())
    with sampler:
        block = np.ones(64 * MIB, dtype=np.uint8)  # so large that the allocator gives it back at once
        sampler._stop.wait(0.05)
        del block
    host_peak, device_peak = sampler.peaks()
    assert abs(host_peak - 64 * MIB) < 2 * MIB and device_peak < MIB
    seconds = [sample[0] for sample in sampler.samples]
    assert seconds == sorted(seconds) and len(seconds) > 2
    assert sampler.samples[-1][1] < 2 * MIB


@on_cpu
def test_the_peaks_tell_the_strategies_apart(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    total = checkpoint.total_bytes
    dense = sum(stored.spec.nbytes for stored in checkpoint.tensors.values() if not stored.spec.is_expert)
    assert dense > 30 * MIB > 5 * SLACK
    expected = {  # host, device, right
        "drain": (LIMIT, total, False),
        "clone_on_device": (LIMIT, total + dense, True),
        "host_copies": (LIMIT + dense, total, True),
        "place": (LIMIT, total, True),
    }
    for way, (host, device, right) in expected.items():
        run = measure(folder, way, LIMIT)
        assert abs(run.host_peak - host) < SLACK, (way, run.host_peak / MIB, host / MIB)
        assert abs(run.device_peak - device) < SLACK, (way, run.device_peak / MIB, device / MIB)
        assert (run.wrong == 0) == right and run.tensors == len(checkpoint.tensors)
        assert (run.way, run.memory_limit, run.device) == (way, LIMIT, "shared memory")
        assert run.samples[0][0] < run.samples[-1][0] and all(len(sample) == 3 for sample in run.samples)


@on_cpu
def test_every_way_runs(folder: Path) -> None:
    """In this process, so its peaks say nothing; the values do."""
    wrong = {way: memory.measure_here(folder, way, LIMIT).wrong for way in memory.WAYS}
    assert {way for way, count in wrong.items() if count} == {"drain", "lazy_experts_only"}


def test_what_cannot_be_measured_is_an_error_with_the_reason(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="no way of loading named 'magic'.*host_copies"):
        measure(folder, "magic")
    with pytest.raises(MeasurementError, match=f"'drain' ended with 1: .*CheckpointError: {tmp_path}"):
        measure(tmp_path, "drain")
    with pytest.raises(ValueError, match="4 parsecs"):
        measure(folder, "drain", "4 parsecs")
    with pytest.raises(MeasurementError, match="no RssNothing"):
        resident_bytes("RssNothing")
