"""MXFP4, the format of gpt-oss's expert weights: 32 values share one power of two.

A value is four bits, `sign << 3 | index`, and the index picks one of 0, 0.5, 1, 1.5, 2, 3, 4, 6. Sixteen
bytes hold a block of 32 values: byte j holds value 2j in its low nibble and value 2j + 1 in its high one. One
more byte holds the block's scale, `2 ** (byte - 127)`. The format is the OCP Microscaling (MX) specification,
version 1.0.

Each function exists twice: `quantise` and `dequantise` are fast, their `_by_table` twins are for reading.
"""

from __future__ import annotations

import torch

BLOCK = 32
"""Values that share one scale."""

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each nibble, by nibble."""

SCALE_BIAS = 127
"""A scale byte of 127 means 1."""


def quantise(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round values to MXFP4, blocks of 32 along the last axis.

    The scale is the smallest power of two that brings the block's largest magnitude to at most 6; values are
    then rounded to the nearest of the 16, ties to the even index. A block of zeros gets scale byte 0.

    values: floating point [..., K], K a multiple of 32, all finite.
    Returns blocks, uint8 [..., K/32, 16], and scales, uint8 [..., K/32].
    Raises ValueError for a K that is not a multiple of 32, for a tensor that is not floating point, and for
    values that are not finite, which FP4 cannot hold.
    """
    groups = _split_into_blocks(values)  # [..., K/32, 32]
    scales = _choose_scales(groups)  # [..., K/32]
    scaled = (groups / _halved_scales(scales).float()[..., None] / 2).contiguous()  # [..., K/32, 32]
    # Neighbouring FP4 values meet at these midpoints. A tie goes to the even index, so every second midpoint
    # belongs to the value above it: there the boundary is the float just below.
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=values.device)
    midpoints[1::2] = torch.nextafter(midpoints[1::2], midpoints.new_zeros(()))
    index = torch.bucketize(scaled.abs(), midpoints, out_int32=True).to(torch.uint8)  # [..., K/32, 32]
    nibbles = index | (torch.signbit(scaled).to(torch.uint8) << 3)  # [..., K/32, 32]
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), scales


def dequantise(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Turn MXFP4 blocks and scales back into values, by moving bits.

    blocks: uint8 [..., G, 16]; scales: uint8 [..., G]; both may be views with any strides.
    Returns `dtype` [..., G * 32]. Every value is exact in bfloat16 and float32 except those of `2 ** 128` and
    more, which become infinity. Scale byte 255 is NaN in the specification; like the decoders in use, this
    one reads it as `2 ** 128`.
    Raises ValueError if the shapes or dtypes do not belong together.
    """
    _check_pair(blocks, scales)
    nibbles = torch.stack((blocks & 0x0F, blocks >> 4), dim=-1).flatten(-2).to(torch.int16)  # [..., G, 32]
    # FP4 has one sign, two exponent bits and one mantissa bit; bfloat16 has 1, 8 and 7. Put each field where
    # bfloat16 keeps it, then make up for the difference between the biases, 127 and 1: a factor of 2 ** 126.
    # It is doubled here and halved in the scale, so that the scale of byte 255 is a number too.
    bits = ((nibbles & 0x7) << 6) | ((nibbles & 0x8) << 12)  # [..., G, 32]
    doubled = bits.view(torch.bfloat16) * 2.0**127  # [..., G, 32]
    return (doubled * _halved_scales(scales)[..., None]).flatten(-2).to(dtype)  # [..., G * 32]


def quantise_by_table(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `quantise` does, by measuring the distance to each of the eight magnitudes.

    Same shapes, dtypes and errors.
    """
    groups = _split_into_blocks(values)  # [..., K/32, 32]
    scales = _choose_scales(groups)  # [..., K/32]
    scaled = groups.double() / 2.0 ** (scales.double()[..., None] - SCALE_BIAS)  # [..., K/32, 32]
    magnitudes = torch.tensor(FP4_VALUES[:8], dtype=torch.float64, device=values.device)  # [8]
    distance = (scaled.abs()[..., None] - magnitudes).abs()  # [..., K/32, 32, 8]
    # argmin returns the first of equals. With the even indices in front, a tie goes to the even one.
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7], device=values.device)
    index = order[distance[..., order].argmin(dim=-1)]  # [..., K/32, 32]
    nibbles = (index + 8 * torch.signbit(scaled)).to(torch.uint8)  # [..., K/32, 32]
    low, high = nibbles[..., 0::2], nibbles[..., 1::2]  # [..., K/32, 16]
    return low + 16 * high, scales


def dequantise_by_table(
    blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Do what `dequantise` does, by looking each nibble up in `FP4_VALUES`.

    Same shapes, dtypes and errors.
    """
    _check_pair(blocks, scales)
    table = torch.tensor(FP4_VALUES, dtype=torch.float64, device=blocks.device)  # [16]
    low, high = table[(blocks % 16).long()], table[(blocks // 16).long()]  # [..., G, 16]
    values = torch.stack((low, high), dim=-1).flatten(-2)  # [..., G, 32]
    powers = torch.tensor([2.0 ** (byte - SCALE_BIAS) for byte in range(256)], dtype=torch.float64)  # [256]
    powers = powers.to(blocks.device)[scales.long()]  # [..., G]
    return (values * powers[..., None]).flatten(-2).to(dtype)  # [..., G * 32]


def _split_into_blocks(values: torch.Tensor) -> torch.Tensor:
    """View [..., K] as float32 [..., K/32, 32], or say why that cannot be."""
    if not values.is_floating_point():
        raise ValueError(f"quantise takes floating-point values, got {values.dtype}: convert them first")
    if values.ndim == 0 or values.shape[-1] % BLOCK:
        raise ValueError(
            f"the last axis of {tuple(values.shape)} must be a multiple of {BLOCK}: pad it with zeros, or "
            "quantise along another axis"
        )
    groups = values.float().unflatten(-1, (values.shape[-1] // BLOCK, BLOCK))  # [..., K/32, 32]
    if not torch.isfinite(groups).all():
        raise ValueError("quantise takes finite values, got NaN or infinity: FP4 has no code for them")
    return groups


def _choose_scales(groups: torch.Tensor) -> torch.Tensor:
    """Return the scale byte of each block: the exponent of `2 ** ceil(log2(amax / 6))`."""
    mantissa, exponent = torch.frexp(groups.abs().amax(dim=-1) / 6.0)  # [..., K/32], mantissa in [0.5, 1)
    # A power of two has mantissa 0.5 and needs no rounding up.
    rounded = exponent - (mantissa == 0.5).int() + SCALE_BIAS  # [..., K/32]
    return rounded.masked_fill(mantissa == 0, 0).clamp(0, 254).to(torch.uint8)


def _halved_scales(scales: torch.Tensor) -> torch.Tensor:
    """Return `2 ** (byte - 128)` in bfloat16, by bits: the exponent field is byte - 1.

    Bytes 0 and 1 are below the exponent's range: they set one bit of the mantissa.
    """
    bits = (scales.to(torch.int16) - 1) << 7  # [..., G]
    bits = bits.masked_fill(scales == 1, 1 << 6).masked_fill(scales == 0, 1 << 5)  # [..., G]
    return bits.view(torch.bfloat16)  # [..., G]


def _check_pair(blocks: torch.Tensor, scales: torch.Tensor) -> None:
    """Raise ValueError unless blocks and scales are uint8 and belong together."""
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise ValueError(f"blocks and scales are uint8, got {blocks.dtype} and {scales.dtype}")
    if blocks.ndim == 0 or blocks.shape[-1] != BLOCK // 2 or blocks.shape[:-1] != scales.shape:
        raise ValueError(
            f"blocks [..., G, 16] go with scales [..., G], got {tuple(blocks.shape)} and "
            f"{tuple(scales.shape)}: pass the two tensors of one projection"
        )
