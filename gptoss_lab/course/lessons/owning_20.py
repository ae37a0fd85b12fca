"""Three ways to tell whose a tensor is: by a mark on the object, by a mark on its storage, by its memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from gptoss_lab.weights.streaming import STREAMED

Item = tuple[str, torch.Tensor]
Range = tuple[int, int]

WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tensor": lambda t: t,
    "view(-1)": lambda t: t.view(-1),
    "detach()": lambda t: t.detach(),
    ".data": lambda t: t.data,
    "narrow(0, 1, 2)": lambda t: t.narrow(0, 1, 2),
    "reshape(-1)": lambda t: t.reshape(-1),
    "Parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "contiguous()": lambda t: t.contiguous(),
    'to("cpu")': lambda t: t.to("cpu"),
    "through numpy": lambda t: torch.from_numpy(t.view(torch.uint8).numpy()).view(t.dtype),
    "through dlpack": lambda t: torch.from_dlpack(t),
    "clone()": lambda t: t.clone(),
    'to("cpu", copy=True)': lambda t: t.to("cpu", copy=True),
    "float()": lambda t: t.float(),
    "deepcopy": lambda t: copy.deepcopy(t),
}
"""Ways of making a tensor from one of BF16 with at least 3 rows."""
IN_ITS_MEMORY = 11  # so many of them, the first ones, copy nothing


def mark_storage(weights: Iterable[Item]) -> Iterator[Item]:
    """Mark the storage of each tensor too, as SGLang's iterator does in 0.5.23."""
    for name, tensor in weights:
        setattr(tensor.untyped_storage(), STREAMED, True)
        yield name, tensor


def has_marked_storage(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's storage carries the mark, as SGLang's NVFP4 loader asks in 0.5.23."""
    return getattr(tensor.untyped_storage(), STREAMED, False)


def own_if_storage_marked(tensor: torch.Tensor) -> torch.Tensor:
    """Return a host copy if the storage carries the mark, else the same object."""
    return tensor.detach().to("cpu", copy=True) if has_marked_storage(tensor) else tensor


def memory_of(tensor: torch.Tensor) -> Range:
    """The addresses of a tensor's storage: its first byte, and the one after its last."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def own_by_memory(tensor: torch.Tensor, lent: Sequence[Range]) -> torch.Tensor:
    """Return a host copy if any byte of the tensor's storage is lent, else the same object.

    `lent` are ranges of addresses, each with its first byte and the one after its last.
    """
    start, stop = memory_of(tensor)
    if any(max(start, first) < min(stop, last) for first, last in lent):
        return tensor.detach().to("cpu", copy=True)
    return tensor
