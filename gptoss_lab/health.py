"""What non-finite numbers tell: where they first appear in a model, and why token 0 was chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Step:
    """One module's output: the largest finite magnitude in it, and the fraction that is not finite."""

    name: str
    largest: float
    nonfinite: float


def trace(model: nn.Module, run: Callable[[], object]) -> list[Step]:
    """Call `run()`, which runs `model`, and describe each module's output in the order in which modules finish.

    Modules whose output is not a tensor are left out. No hook stays behind.
    """
    steps: list[Step] = []

    def watch(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, torch.Tensor):
                steps.append(_describe(name, output))

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return steps


def first_nonfinite(model: nn.Module, run: Callable[[], object]) -> str | None:
    """Name the first module, in the order in which modules finish, with a number in its output that is not finite."""
    return next((step.name for step in trace(model, run) if step.nonfinite), None)


def why_token_zero(logits: torch.Tensor) -> str | None:
    """Tell why `argmax` of one row of logits [vocab] is 0.

    Returns "nan" if index 0 is NaN (which `argmax` takes for the largest), "tie" if it shares the maximum, "chosen"
    if it alone is the maximum, None if `argmax` is another index.
    """
    if logits.argmax() != 0:
        return None
    if logits[0].isnan():
        return "nan"
    return "tie" if (logits == logits[0]).sum() > 1 else "chosen"


def _describe(name: str, output: torch.Tensor) -> Step:
    finite = output.isfinite()
    largest = float(output.detach()[finite].float().abs().max()) if finite.any() else 0.0
    # Counted as integers: a mean in float32 would lose one NaN among 33 million numbers.
    nonfinite = int((~finite).sum()) / output.numel() if output.numel() else 0.0
    return Step(name, largest, nonfinite)
