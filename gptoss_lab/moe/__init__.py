"""A token's way from router logits to experts, on the real `triton_kernels`.

Triton decides at its own import whether kernels are compiled for a GPU or interpreted on the CPU, so the
switch `TRITON_INTERPRET` has to stand before that. Importing this package sets it to 1 when there is no CUDA
device and nobody has set it. This is the only work that the package does at import.
"""

from __future__ import annotations

import os
import sys
import warnings

import torch

TOO_LATE = (
    "triton was imported before gptoss_lab.moe, and there is no CUDA device: its kernels cannot be "
    "interpreted any more and will fail. Import gptoss_lab.moe first, or set TRITON_INTERPRET=1 before "
    "Python starts."
)


def choose_interpreter() -> None:
    """Set `TRITON_INTERPRET=1` where Triton could not run otherwise.

    Nothing happens with a CUDA device, or when the variable is set already, to whatever value.

    Warns:
        RuntimeWarning: Triton is imported already, so that setting the variable has no effect.
    """
    if "TRITON_INTERPRET" in os.environ or torch.cuda.is_available():
        return
    if "triton" in sys.modules:
        warnings.warn(TOO_LATE, RuntimeWarning, stacklevel=3)
        return
    os.environ["TRITON_INTERPRET"] = "1"


choose_interpreter()
