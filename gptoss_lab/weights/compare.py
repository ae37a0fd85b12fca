"""Compare tensors by their bytes: which differ, and whose bytes a wrong one holds."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of `tensor` in row-major order, whatever its dtype, strides or device."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)  # [numel]
    return flat.view(torch.uint8).numpy().tobytes()


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors have one dtype, one shape and the same bytes.

    Bytes, not values: a NaN equals a NaN with the same bits, and -0.0 differs from 0.0.
    """
    return a.dtype == b.dtype and a.shape == b.shape and raw_bytes(a) == raw_bytes(b)


def differing(expected: Mapping[str, torch.Tensor], actual: Mapping[str, torch.Tensor]) -> list[str]:
    """List the names, sorted, whose tensors are not the same bytes in both mappings.

    A name that only one of the mappings has counts as different.
    """
    names = sorted(expected.keys() | actual.keys())
    return [n for n in names if n not in expected or n not in actual or not same_bytes(expected[n], actual[n])]


def source_of(wrong: torch.Tensor, originals: Mapping[str, torch.Tensor], probe: int = 32) -> tuple[str, int] | None:
    """Find whose bytes stand at the start of `wrong`.

    Takes the first `probe` bytes of `wrong` (all of them if it is shorter). Returns the name of the first tensor
    in `originals` that contains these bytes, and their offset there in bytes; None if no tensor does.
    """
    needle = raw_bytes(wrong)[:probe]
    for name, tensor in originals.items():
        offset = raw_bytes(tensor).find(needle)
        if offset >= 0:
            return name, offset
    return None


def shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether at least one byte of memory belongs to both tensors, by their address ranges.

    Exact for contiguous tensors; a strided tensor counts with all of its span. Tensors on different devices share
    nothing.
    """
    (a_start, a_stop), (b_start, b_stop) = _span(a), _span(b)
    return a.device == b.device and max(a_start, b_start) < min(a_stop, b_stop)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor, and the one after its last."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), tensor.data_ptr()
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()
