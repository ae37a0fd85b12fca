"""What the checkers of `44__reuse` hand to the learner's function, and how they watch it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gptoss_lab.course.check import Mismatch
from gptoss_lab.course.describe import describe, kind_of
from gptoss_lab.moe import routing as package
from gptoss_lab.moe.equivalence import drop_padding
from gptoss_lab.moe.generations import interpreting

READERS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__")


@functools.cache
def prepared(tokens: int, experts: int, k: int, dtype: torch.dtype, n_rows: int | None = None) -> Any:
    """Run `topk` once for each size. Nobody may change what it returned: take `own_sparse`."""
    device = "cuda" if torch.cuda.is_available() and not interpreting() else "cpu"
    logits = torch.randn((tokens, experts), generator=torch.Generator().manual_seed(tokens + experts)).to(dtype)
    sparse = package.topk(logits.to(device), k, n_rows)
    if n_rows is not None:
        # topk leaves these rows unwritten, and whatever stands there would send a second packing out of bounds.
        sparse.indx[n_rows:], sparse.vals[n_rows:] = -1, 0
    return sparse


@functools.cache
def reused(*size: Any) -> package.Routing:
    """Return the package's `reuse` of `prepared(*size)`."""
    return package.reuse(prepared(*size), size[1])


@functools.cache
def rebuilt(*size: Any) -> package.Routing:
    """Return the package's `rebuild` of `prepared(*size)`, without padding."""
    return drop_padding(package.rebuild(prepared(*size), size[1]))


def own_sparse(*size: Any) -> Any:
    """Return a `SparseMatrix` of its own, with its metadata."""
    sparse = copy.copy(prepared(*size))
    metadata = sparse.mask_metadata
    fields = {field.name: getattr(metadata, field.name).clone() for field in dataclasses.fields(metadata)}
    sparse.indx, sparse.vals = sparse.indx.clone(), sparse.vals.clone()
    sparse.mask_metadata = dataclasses.replace(metadata, **fields)
    return sparse


def route(learner: Callable, *size: Any) -> package.Routing:
    """Call the learner's function. Its answer must be a Routing."""
    routing = learner(own_sparse(*size), size[1])
    if not isinstance(routing, package.Routing):
        raise Mismatch(f"the result is {describe(routing)}, expected a Routing", kinds=(kind_of(routing), "Routing"))
    return routing


@contextlib.contextmanager
def reads() -> Iterator[list[str]]:
    """Note the calls that bring a tensor's values to the host, but for those of Triton's interpreter itself."""
    read: list[str] = []
    originals = {name: getattr(torch.Tensor, name) for name in READERS}

    def noting(name: str) -> Callable:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if not caller.startswith(("triton.", "torch.")):
                read.append(name)
            return originals[name](tensor, *args, **kwargs)

        return call

    for name in READERS:
        setattr(torch.Tensor, name, noting(name))
    try:
        yield read
    finally:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)


def first_slices(routing: package.Routing, n: int) -> package.Routing:
    """Return the routing with its first n slices alone, as a rank with n experts would read the metadata of all."""
    ragged = routing.ragged_metadata
    cut = dataclasses.replace(
        ragged,
        slice_sizes=ragged.slice_sizes[:n],
        slice_offs=ragged.slice_offs[: n + 1],
        block_offs_data=ragged.block_offs_data[:, : n + 1],
    )
    return dataclasses.replace(routing, ragged_metadata=cut, n_experts=n)
