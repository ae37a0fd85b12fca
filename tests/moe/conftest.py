"""The same tests run on a CPU through Triton's interpreter, few and small, and natively on a GPU, many and
large.
"""

from __future__ import annotations

import pytest
import torch

import gptoss_lab.moe  # noqa: F401  chooses the interpreter before anything imports triton
from gptoss_lab.moe.generations import interpreting

NATIVE = torch.cuda.is_available() and not interpreting()


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if NATIVE else "cpu"


@pytest.fixture
def logits(device):
    """A function that makes random logits [tokens, experts]; the same every time."""

    def make(tokens: int, experts: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        random = torch.Generator().manual_seed(tokens * 1000 + experts)
        return torch.randn((tokens, experts), generator=random).to(dtype).to(device)

    return make
