"""MXFP4: the fast and the readable twin against each other, triton_kernels and transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from gptoss_lab.mxfp4 import (
    BLOCK,
    FP4_VALUES,
    dequantise,
    dequantise_by_table,
    quantise,
    quantise_by_table,
)

DEQUANTISERS = [dequantise, dequantise_by_table]
QUANTISERS = [quantise, quantise_by_table]
DTYPES = [torch.bfloat16, torch.float32, torch.float16]


def every_byte_under_every_scale() -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks [256, 16, 16] that hold each byte once a row, and scales [256, 16], one byte a row."""
    byte = torch.arange(256).to(torch.uint8)
    return byte.view(1, 16, 16).repeat(256, 1, 1), byte.view(256, 1).repeat(1, 16)


def bits(values: torch.Tensor) -> torch.Tensor:
    """The bits of floating-point values, so that -0.0 differs from 0.0 and NaN equals NaN."""
    return values.contiguous().view(torch.int32 if values.dtype == torch.float32 else torch.int16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantise_twins_are_equal_for_every_byte_and_scale(dtype):
    blocks, scales = every_byte_under_every_scale()
    fast, readable = dequantise(blocks, scales, dtype), dequantise_by_table(blocks, scales, dtype)
    assert fast.shape == readable.shape == (256, 512)
    assert fast.dtype == readable.dtype == dtype
    assert torch.equal(bits(fast), bits(readable))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantise_equals_transformers_for_every_byte_and_scale(dtype):
    blocks, scales = every_byte_under_every_scale()
    ours = dequantise(blocks, scales, dtype)  # [256, 512]
    # transformers wants [experts, rows, G, 16] and returns the last two axes swapped.
    theirs = convert_moe_packed_tensors(blocks[None], scales[None], dtype=dtype)[0].T  # [256, 512]
    assert torch.equal(bits(ours), bits(theirs))


@pytest.mark.parametrize("convert", DEQUANTISERS)
def test_every_nibble_has_its_value_low_nibble_first(convert):
    low, high = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    blocks = (low + 16 * high).to(torch.uint8).view(16, 16)  # byte [low, high]
    values = convert(blocks, torch.full((16,), 127, dtype=torch.uint8), torch.float32).view(16, 16, 2)
    table = torch.tensor(FP4_VALUES)
    assert torch.equal(values[..., 0], table[low])
    assert torch.equal(values[..., 1], table[high])


@pytest.mark.parametrize("convert", DEQUANTISERS)
@pytest.mark.parametrize("byte", [0, 1, 127, 254])
def test_scale_is_exactly_a_power_of_two(convert, byte):
    one_and_half = torch.full((1, 16), 0x12, dtype=torch.uint8)  # low nibble 2 is 1.0, high nibble 1 is 0.5
    for dtype in (torch.float32, torch.bfloat16):
        values = convert(one_and_half, torch.tensor([byte], dtype=torch.uint8), dtype)
        assert values.view(16, 2).double().unique(dim=0).tolist() == [[2.0 ** (byte - 127), 2.0 ** (byte - 128)]]


@pytest.mark.parametrize("convert", DEQUANTISERS)
def test_scale_255_is_two_to_the_128(convert):
    blocks = torch.tensor([[0x10, 0x32, 0x98] + [0] * 13], dtype=torch.uint8)  # 0, 0.5, 1, 1.5, -0, -0.5
    values = convert(blocks, torch.tensor([255], dtype=torch.uint8), torch.float32)[:6].tolist()
    assert values == [0.0, 2.0**127, float("inf"), float("inf"), 0.0, -(2.0**127)]


@pytest.mark.parametrize("convert", DEQUANTISERS)
def test_padding_behind_the_scales_is_never_read(convert):
    torch.manual_seed(0)
    blocks = torch.randint(0, 256, (4, 6, 16), dtype=torch.uint8)
    scales = torch.randint(100, 150, (4, 6), dtype=torch.uint8)
    wide_blocks, wide_scales = torch.full((5, 8, 32), 255).byte(), torch.full((5, 8), 255).byte()
    wide_blocks[:4, :6, :16], wide_scales[:4, :6] = blocks, scales
    assert torch.equal(convert(wide_blocks[:4, :6, :16], wide_scales[:4, :6]), convert(blocks.clone(), scales.clone()))


@pytest.mark.parametrize("convert", DEQUANTISERS)
def test_tensor_parallel_slices_are_slices_of_the_whole(convert):
    """Two ranks: gate_up by rows, an even number each, so that pairs stay together; down by blocks of 32."""
    torch.manual_seed(0)
    gate_up, down = torch.randn(2, 128, 64), torch.randn(2, 64, 64)
    blocks, scales = quantise(gate_up)
    whole = convert(blocks, scales)  # [2, 128, 64]
    halves = [convert(blocks[:, rows], scales[:, rows]) for rows in (slice(0, 64), slice(64, 128))]
    assert torch.equal(torch.cat(halves, dim=1), whole)
    # De-interleaved before or after the cut: each rank's gate rows are a run of all gate rows.
    assert torch.equal(torch.cat([half[:, 0::2] for half in halves], dim=1), whole[:, 0::2])
    blocks, scales = quantise(down)
    halves = [convert(blocks[:, :, g : g + 1], scales[:, :, g : g + 1]) for g in (0, 1)]
    assert [half.shape for half in halves] == [(2, 64, 32), (2, 64, 32)]
    assert torch.equal(torch.cat(halves, dim=2), convert(blocks, scales))


@pytest.mark.parametrize("shape", [(0, 32), (32,), (3, 0, 64), (2, 0)])
@pytest.mark.parametrize("twin", [0, 1])
def test_odd_shapes_go_through_both_ways(shape, twin):
    blocks, scales = QUANTISERS[twin](torch.ones(shape))
    assert blocks.shape == (*shape[:-1], shape[-1] // BLOCK, 16)
    assert scales.shape == (*shape[:-1], shape[-1] // BLOCK)
    assert torch.equal(DEQUANTISERS[twin](blocks, scales), torch.ones(shape, dtype=torch.bfloat16))


@pytest.mark.parametrize("magnitude", [1e-30, 1e-3, 1.0, 1e5, 1e30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantise_equals_triton_kernels_in_the_normal_range(magnitude, dtype):
    # Imported late: it imports triton, and others may still have to choose triton's interpreter.
    from triton_kernels.numerics_details.mxfp import downcast_to_mxfp_torch

    if dtype == torch.float16 and not 1e-3 <= magnitude <= 1:
        magnitude = 0.1  # float16 holds no other
    torch.manual_seed(0)
    values = torch.randn(5, 8, 256)
    values[1] = (values[1] * 4).round() / 4  # many ties between neighbours
    values[2, 0, :32] = 0
    values = (values * magnitude).to(dtype)
    theirs_blocks, theirs_scales = downcast_to_mxfp_torch(values, torch.uint8, axis=-1)
    for convert in QUANTISERS:
        blocks, scales = convert(values)
        assert blocks.dtype == scales.dtype == torch.uint8
        assert torch.equal(blocks.flatten(-2), theirs_blocks)
        assert torch.equal(scales, theirs_scales)


def test_ties_go_to_the_even_index():
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    even = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    values = torch.tensor([*ties, *[-tie for tie in ties], 6.0] + [0.0] * 17)  # amax 6: the scale is 1
    for quantiser in QUANTISERS:
        blocks, scales = quantiser(values)
        assert scales.tolist() == [127]
        restored = dequantise(blocks, scales, torch.float32)
        assert restored[:7].tolist() == even
        assert restored[7:14].tolist() == [-value for value in even]


@pytest.mark.parametrize("byte", [1, 2, 64, 127, 200, 252])
def test_representable_values_survive(byte):
    """What dequantise gives, quantise finds again, as far as the block's scale is the smallest that fits."""
    torch.manual_seed(byte)
    blocks = torch.randint(0, 256, (64, 2, 16), dtype=torch.uint8)
    blocks[..., 0] = 0x7F  # -6 and 6: no smaller scale will do
    scales = torch.full((64, 2), byte, dtype=torch.uint8)
    for quantiser in QUANTISERS:
        again, again_scales = quantiser(dequantise(blocks, scales, torch.float32))
        assert torch.equal(again_scales, scales)
        assert torch.equal(again, blocks)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=32, max_size=32))
def test_quantise_twins_are_equal_for_all_finite_floats(values):
    values = torch.tensor(values)
    fast, readable = quantise(values), quantise_by_table(values)
    assert torch.equal(fast[0], readable[0])
    assert torch.equal(fast[1], readable[1])
    if values.abs().max() < 1e38:  # above, 4 times the scale may be 2 ** 128, which float32 lacks
        restored = dequantise(*fast, torch.float32).double()
        half_of_widest_gap = 2.0 ** (int(fast[1]) - 127)  # from 4 to 6
        assert (restored - values.double()).abs().max() <= half_of_widest_gap


@pytest.mark.parametrize("convert", QUANTISERS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.ones(2, 48), r"\(2, 48\).*multiple of 32.*pad"),
        (torch.ones(31), "multiple of 32"),
        (torch.tensor(1.0), "multiple of 32"),
        (torch.ones(32, dtype=torch.int64), "floating-point.*int64"),
        (torch.full((32,), float("nan")), "finite"),
        (torch.full((32,), float("-inf")), "finite"),
    ],
)
def test_quantise_refuses(convert, values, message):
    with pytest.raises(ValueError, match=message):
        convert(values)


@pytest.mark.parametrize("convert", DEQUANTISERS)
@pytest.mark.parametrize(
    ("blocks", "scales", "message"),
    [
        (torch.zeros(2, 16).byte(), torch.zeros(3).byte(), r"\(2, 16\).*\(3,\)"),
        (torch.zeros(2, 15).byte(), torch.zeros(2).byte(), r"\(2, 15\)"),
        (torch.zeros(2, 16).byte(), torch.zeros(2, 1).byte(), r"\(2, 1\)"),
        (torch.zeros(2, 16).char(), torch.zeros(2).byte(), "uint8.*int8"),
        (torch.zeros(2, 16).byte(), torch.zeros(2), "uint8.*float32"),
        (torch.tensor(0).byte(), torch.tensor(0).byte(), "G, 16"),
    ],
)
def test_dequantise_refuses(convert, blocks, scales, message):
    with pytest.raises(ValueError, match=message):
        convert(blocks, scales)


def test_no_function_changes_its_input():
    values = torch.randn(4, 64)
    kept = values.clone()
    blocks, scales = quantise(values)
    kept_blocks, kept_scales = blocks.clone(), scales.clone()
    for convert in DEQUANTISERS:
        convert(blocks, scales)
    for convert in QUANTISERS:
        convert(values)
    assert torch.equal(values, kept)
    assert torch.equal(blocks, kept_blocks)
    assert torch.equal(scales, kept_scales)
