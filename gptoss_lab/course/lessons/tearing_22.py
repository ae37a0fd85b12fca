"""Tell old bytes, new bytes and a mixture apart."""

from __future__ import annotations

import torch


def classify(view: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> str:
    """Say whether `view` holds the bytes of `old`, those of `new`, or some of each: "old", "new" or "torn".

    All three have the same number of bytes; dtype and shape may differ. Where old and new are the same, it is "old".

    Raises:
        ValueError: a byte is neither the old nor the new one in its place.
    """
    now, was, will = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (view, old, new))  # [bytes]
    if torch.equal(now, was):
        return "old"
    if torch.equal(now, will):
        return "new"
    strange = int(((now != was) & (now != will)).sum())
    if strange:
        raise ValueError(f"{strange} of {now.numel()} bytes are neither old nor new: somebody else writes here too")
    return "torn"
