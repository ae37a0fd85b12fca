"""Ways of loading a model from a stream of `(name, tensor)`: from the defect to the best.

Each strategy has the shape of SGLang's gpt-oss loader: an expert half, which copies MXFP4 blocks and scales
into their parameters, and a normal half for all the rest. They differ in one thing: what they hold while the
stream moves on. The strategies' names say what becomes of a tensor that has to wait.

The halves are arguments, so that a test or a lesson can put others in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import torch

from gptoss_lab.weights.report import (
    IncompleteLoad,
    LoadError,
    LoadReport,
    Target,
    Weights,
    check_names,
    record,
)
from gptoss_lab.weights.streaming import is_streamed

__all__ = [
    "STRATEGIES",
    "IncompleteLoad",
    "LoadError",
    "LoadReport",
    "check_names",
    "clone_if_streamed",
    "clone_on_device",
    "drain",
    "host_copies",
    "is_expert",
    "lazy_experts_only",
    "load_expert_weights",
    "load_normal_weights",
    "load_weights",
    "own",
    "place",
]

Half = Callable[[Target, Weights], None]
Strategy = Callable[..., LoadReport]


def is_expert(name: str) -> bool:
    """Tell which half a tensor belongs to. The router, `.mlp.router`, is not an expert."""
    return ".experts" in name


def load_expert_weights(model: Target, weights: Weights) -> None:
    """The expert half: copy each tensor into its parameter as it arrives."""
    for name, tensor in weights:
        model.copy_in(name, tensor)


def load_normal_weights(model: Target, weights: Weights) -> None:
    """The normal half: the same for everything that is not an expert."""
    for name, tensor in weights:
        model.copy_in(name, tensor)


def own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that the stream cannot change: a host copy if it is streamed, else the same object.

    As `_own_if_runai_streamed` in SGLang's pull request 38908. It goes by the mark, so a view derived from a
    streamed tensor passes through uncopied.
    """
    return tensor.detach().to("cpu", copy=True) if is_streamed(tensor) else tensor


def clone_if_streamed(tensor: torch.Tensor) -> torch.Tensor:
    """The first cut of `own`: a copy on the tensor's own device, whose memory is the scarce one."""
    return tensor.detach().clone() if is_streamed(tensor) else tensor


def drain(
    model: Target,
    weights: Weights,
    *,
    names: Iterable[str] | None = None,
    load_experts: Half = load_expert_weights,
    load_normal: Half = load_normal_weights,
) -> LoadReport:
    """The defect: sort the whole stream into two lists, then load them.

    Every view is held until the stream has ended, so each one that a later request covers is read too late.
    The shape of SGLang's `_load_weights_mxfp4` before pull request 38908. Raises LoadError for names that do
    not fit, IncompleteLoad for a half that leaves tensors out.
    """
    return _two_lists("drain", model, weights, names, load_experts, load_normal)


def lazy_experts_only(
    model: Target,
    weights: Weights,
    *,
    names: Iterable[str] | None = None,
    load_experts: Half = load_expert_weights,
    load_normal: Half = load_normal_weights,
) -> LoadReport:
    """Half a fix: experts are copied as they arrive, the rest still waits as views and is read too late."""
    return _experts_first("lazy_experts_only", model, weights, names, load_experts, load_normal, _as_it_is, "host")


def clone_on_device(
    model: Target,
    weights: Weights,
    *,
    names: Iterable[str] | None = None,
    load_experts: Half = load_expert_weights,
    load_normal: Half = load_normal_weights,
    own: Callable[[torch.Tensor], torch.Tensor] = clone_if_streamed,
) -> LoadReport:
    """The first cut of the pull request: experts as they arrive, the rest cloned where it lies.

    Right, but the clones of a device stream stay on the device until the stream ends, several GiB beside the
    model.
    """
    return _experts_first("clone_on_device", model, weights, names, load_experts, load_normal, own, "device")


def host_copies(
    model: Target,
    weights: Weights,
    *,
    names: Iterable[str] | None = None,
    load_experts: Half = load_expert_weights,
    load_normal: Half = load_normal_weights,
    own: Callable[[torch.Tensor], torch.Tensor] = own,
) -> LoadReport:
    """The fix (SGLang pull request 38908): experts as they arrive, the rest waits as copies on the host."""
    return _experts_first("host_copies", model, weights, names, load_experts, load_normal, own, "host")


def place(
    model: Target,
    weights: Weights,
    *,
    names: Iterable[str] | None = None,
    load_experts: Half = load_expert_weights,
    load_normal: Half = load_normal_weights,
) -> LoadReport:
    """The best: each tensor goes into its parameter as it arrives, so nothing waits or is copied twice.

    It asks more of the halves: each is called once a tensor, in the stream's order, and must not need
    another.
    """
    with record("place", model, weights, names) as run:
        for name, tensor in run.weights:
            half = load_experts if is_expert(name) else load_normal
            half(run, [(name, tensor)])
    return run.report()


STRATEGIES: dict[str, Strategy] = {
    strategy.__name__: strategy for strategy in (drain, lazy_experts_only, clone_on_device, host_copies, place)
}


def load_weights(
    model: Target, weights: Weights, quantization: str | None, *, names: Iterable[str] | None = None
) -> LoadReport:
    """Choose the path as SGLang does, by the quantisation's name: "mxfp4", "quark", anything else normal.

    Only the mxfp4 path is mended. The other two still drain the stream, as they do in SGLang 0.5.23.
    """
    paths = {"mxfp4": host_copies, "quark": _load_quark}
    return paths.get(quantization, _load_bf16)(model, weights, names=names)


def _load_quark(model: Target, weights: Weights, *, names: Iterable[str] | None = None) -> LoadReport:
    """Two lists, like `drain`."""
    return _two_lists("quark", model, weights, names, load_expert_weights, load_normal_weights)


def _load_bf16(model: Target, weights: Weights, *, names: Iterable[str] | None = None) -> LoadReport:
    """Canonical names first, for which the original makes a dict of the whole stream."""
    with record("normal", model, weights, names) as run:
        load_normal_weights(run, sorted(dict(run.weights).items()))
    return run.report()


def _two_lists(
    strategy: str,
    model: Target,
    weights: Weights,
    names: Iterable[str] | None,
    load_experts: Half,
    load_normal: Half,
) -> LoadReport:
    with record(strategy, model, weights, names) as run:
        experts, rest = [], []
        for name, tensor in run.weights:
            (experts if is_expert(name) else rest).append((name, tensor))
        load_experts(run, experts)
        load_normal(run, rest)
    return run.report()


def _experts_first(
    strategy: str,
    model: Target,
    weights: Weights,
    names: Iterable[str] | None,
    load_experts: Half,
    load_normal: Half,
    own: Callable[[torch.Tensor], torch.Tensor],
    where: Literal["host", "device"],
) -> LoadReport:
    with record(strategy, model, weights, names) as run:
        rest: list[tuple[str, torch.Tensor]] = []

        def experts() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in run.weights:
                if is_expert(name):
                    yield name, tensor
                else:
                    rest.append((name, run.keep(tensor, own(tensor), where)))

        load_experts(run, experts())
        load_normal(run, rest)
    return run.report()


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
