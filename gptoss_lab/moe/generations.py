"""Which `triton_kernels` is installed, told by what it can do.

The library carries no usable version, and its generations share one module name. Two matter here: the one
with `SparseMatrix` (3.6 and later) and 3.5.1 with the fused `routing()`. Each function below returns the
entry points of one generation, or says what is missing and what to install.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

INSTALL_SPARSE = "pip install 'tokenspeed-triton-kernels==1.0.0.post20260510' 'triton==3.8.0'"
INSTALL_LEGACY = (
    "release 3.5.1 is the folder vllm/third_party/triton_kernels of vLLM 0.33.0's wheel; put the folder "
    "that holds it first on PYTHONPATH and use triton 3.6"
)


class MissingKernels(ImportError):
    """The installed `triton_kernels` lacks what was asked for. The message says what to install."""


@dataclass(frozen=True)
class SparseKernels:
    """Entry points of the generation whose `topk` returns a `SparseMatrix`."""

    topk: Any
    SparseMatrix: Any
    wrap_torch_tensor: Any
    BIT: Any
    RaggedTensorMetadata: Any
    make_ragged_tensor_metadata: Any
    remap_ragged_tensor_metadata: Any


@dataclass(frozen=True)
class MatmulKernels:
    """Entry points of the generation whose product is called `matmul`."""

    matmul: Any
    PrecisionConfig: Any
    FusedActivation: Any
    FnSpecs: Any
    swiglu_fn: Any
    wrap_torch_tensor: Any
    convert_layout: Any
    FP4: Any
    make_default_matmul_mxfp4_w_layout: Any
    make_default_matmul_mxfp4_w_scale_layout: Any


def installed_generation() -> str:
    """Return which generation of `triton_kernels` is installed, in words, without importing its kernels."""

    def has(module: str) -> bool:
        return importlib.util.find_spec(f"triton_kernels.{module}") is not None

    if importlib.util.find_spec("triton_kernels") is None:
        return "none"
    if has("routing"):
        return "3.5.1 and before: routing(), matmul_ogs"
    if has("matmul_ogs"):
        return "3.6: SparseMatrix, matmul_ogs"
    if has("matmul") and has("topk"):
        return "3.7 and later: SparseMatrix, matmul"
    return "another package of that name"


def interpreting() -> bool:
    """Whether Triton's kernels are interpreted on the CPU. It was settled when Triton was imported."""
    return not isinstance(tl.sum, JITFunction)


def require_runnable() -> None:
    """Raise RuntimeError when kernels can neither be compiled for a GPU nor interpreted."""
    if torch.cuda.is_available() or interpreting():
        return
    raise RuntimeError(
        f"triton {triton.__version__} was imported without TRITON_INTERPRET=1 and there is no CUDA device: "
        "set TRITON_INTERPRET=1 before Python starts, or import gptoss_lab.moe before triton"
    )


@functools.cache
def sparse_kernels() -> SparseKernels:
    """Return the entry points that `topk`, `reuse`, `rebuild` and `remap` need.

    Errors: `MissingKernels` when `triton_kernels` is absent or of another generation; `RuntimeError` when its
    kernels cannot run here.
    """
    try:
        import triton_kernels
    except ImportError as error:
        raise MissingKernels(f"there is no module triton_kernels ({error}): {INSTALL_SPARSE}") from error
    try:
        from triton_kernels import tensor
        from triton_kernels.tensor_details.dtype import BIT
        from triton_kernels.tensor_details.ragged_tensor import RaggedTensorMetadata
        from triton_kernels.topk import topk

        found = SparseKernels(
            topk=topk,
            SparseMatrix=tensor.SparseMatrix,
            wrap_torch_tensor=tensor.wrap_torch_tensor,
            BIT=BIT,
            RaggedTensorMetadata=RaggedTensorMetadata,
            make_ragged_tensor_metadata=tensor.make_ragged_tensor_metadata,
            remap_ragged_tensor_metadata=tensor.remap_ragged_tensor_metadata,
        )
    except (ImportError, AttributeError) as error:
        where = list(getattr(triton_kernels, "__path__", ["?"]))
        raise MissingKernels(f"triton_kernels in {where} has no SparseMatrix ({error}): {INSTALL_SPARSE}") from error
    require_runnable()
    return found


@functools.cache
def matmul_kernels() -> MatmulKernels:
    """Return the entry points that the MXFP4 product of `gptoss_lab.moe.experts` needs.

    Errors: `MissingKernels` when `triton_kernels` is absent or of another generation.
    """
    try:
        from triton_kernels import matmul, tensor
        from triton_kernels.specialize import FnSpecs
        from triton_kernels.swiglu import swiglu_fn
        from triton_kernels.tensor_details import layout

        return MatmulKernels(
            matmul=matmul.matmul,
            PrecisionConfig=matmul.PrecisionConfig,
            FusedActivation=matmul.FusedActivation,
            FnSpecs=FnSpecs,
            swiglu_fn=swiglu_fn,
            wrap_torch_tensor=tensor.wrap_torch_tensor,
            convert_layout=tensor.convert_layout,
            FP4=tensor.FP4,
            make_default_matmul_mxfp4_w_layout=layout.make_default_matmul_mxfp4_w_layout,
            make_default_matmul_mxfp4_w_scale_layout=layout.make_default_matmul_mxfp4_w_scale_layout,
        )
    except (ImportError, AttributeError) as error:
        raise MissingKernels(f"no triton_kernels with matmul() is installed ({error}): {INSTALL_SPARSE}") from error


@functools.cache
def legacy_routing() -> Any:
    """Return release 3.5.1's `routing(logits, k)`.

    Errors: `MissingKernels` when another generation, or none, is installed.
    """
    try:
        from triton_kernels.routing import routing
    except ImportError as error:
        raise MissingKernels(f"no triton_kernels with routing() is installed ({error}): {INSTALL_LEGACY}") from error
    if not torch.cuda.is_available():
        raise MissingKernels("triton_kernels 3.5.1's routing() needs a CUDA device: there is none here")
    return routing
