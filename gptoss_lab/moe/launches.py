"""The kernels that a call launches, in order, each under the name of the PyTorch or Triton call that made it.

With a GPU the list comes from torch's profiler: every aten and Triton call is marked on the host's
timeline, and each kernel belongs to the mark during which it was launched. Without one the same calls are
seen by a dispatch mode and by a hook on Triton's interpreter, and a rule says how many kernels each would
launch. Both give one list for the calls of this package; a test holds them together.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from triton.compiler import CompiledKernel

from gptoss_lab.moe.generations import interpreting

MARK = "launch:"
# Calls that only make or relabel memory although their schema does not say that they return a view.
NO_LAUNCH = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "as_strided_",
    "resize_",
    "set_",
    "squeeze_",
    "t_",
    "transpose_",
    "unsqueeze_",
}
INDEXING = {"index", "index_put", "index_put_"}
ON_DEVICE = {"kernel", "gpu_memset", "gpu_memcpy"}
ON_HOST = {"cuda_runtime", "cuda_driver"}


@dataclass(frozen=True)
class Launch:
    """One kernel on a GPU. Times are microseconds since the first launch of the call."""

    name: str  # the aten or Triton call
    kernel: str  # what the device ran
    launched_us: float  # when the host asked for it
    started_us: float  # when the device began
    lasted_us: float


def launches(fn: Callable[[], Any]) -> list[str]:
    """Return the launches of `fn()` in order, such as `["_topk_forward", "aten.zeros", ...]`.

    On a GPU `fn` is called twice, the first time to compile, and a copy or a memset is counted too. On a
    CPU `fn` is called once and the rule is: an aten call is one launch unless it returns a view, only
    allocates, or has an empty result; an index by int32 is two, since PyTorch copies the index to int64
    first; a choice by `where` is one more for each tensor that it has to cast; a Triton call is one unless
    its grid is empty. aten calls with several kernels of their own, such as a sort, count as one there.
    """
    if not callable(fn):
        raise TypeError(f"fn is a {type(fn).__name__}: pass a function, such as launches(lambda: route(logits, 4))")
    if torch.cuda.is_available() and not interpreting():
        return [launch.name for launch in timeline(fn)]
    calls = _Calls(marking=False)
    with calls.watch():
        fn()
    return calls.names


def timeline(fn: Callable[[], Any]) -> list[Launch]:
    """Return the launches of `fn()` with their times, from torch's profiler. Needs a CUDA device.

    `fn` is called twice, the first time to compile. Marking slows the host, so gaps between launches are
    longer than without the profiler; the device's times are not affected.
    """
    if not torch.cuda.is_available() or interpreting():
        raise RuntimeError("a timeline needs a CUDA device and compiled kernels: use launches() for names alone")
    fn()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        with _Calls(marking=True).watch():
            fn()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        return match_launches(json.loads(trace.read_text())["traceEvents"])


def match_launches(events: list[dict[str, Any]]) -> list[Launch]:
    """Give each kernel of a profiler's trace to the marked call during which it was launched.

    events: the `traceEvents` of a Chrome trace, times in microseconds. A kernel and its launch on the host
    share a correlation number. A kernel that no marked call launched is named `unmarked <kernel>`.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    marks = [e for e in spans if e.get("cat") == "user_annotation" and e["name"].startswith(MARK)]
    hosts = {e["args"].get("correlation"): e["ts"] for e in spans if e.get("cat") in ON_HOST and "args" in e}
    kernels = [e for e in spans if e.get("cat") in ON_DEVICE]
    lost = [e["name"] for e in kernels if e["args"].get("correlation") not in hosts]
    if lost:
        raise RuntimeError(f"the profiler lost the host's side of {len(lost)} launches, first {lost[0]}: run it again")
    launched = {id(e): hosts[e["args"]["correlation"]] for e in kernels}
    kernels.sort(key=lambda e: (launched[id(e)], e["ts"]))
    zero = launched[id(kernels[0])] if kernels else 0.0
    return [
        Launch(
            name=_marked_call(marks, launched[id(e)]) or f"unmarked {e['name']}",
            kernel=e["name"],
            launched_us=launched[id(e)] - zero,
            started_us=e["ts"] - zero,
            lasted_us=e["dur"],
        )
        for e in kernels
    ]


def _marked_call(marks: list[dict[str, Any]], moment: float) -> str | None:
    inside = [e for e in marks if e["ts"] <= moment <= e["ts"] + e["dur"]]
    return max(inside, key=lambda e: e["ts"])["name"].removeprefix(MARK) if inside else None


class _Calls(TorchDispatchMode):
    """Sees every aten call by dispatch, and every Triton call by a method that is replaced meanwhile."""

    def __init__(self, marking: bool) -> None:
        super().__init__()
        self.marking = marking
        self.names: list[str] = []
        self.in_kernel = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.in_kernel or func.namespace != "aten":
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        with self._mark(f"aten.{name}"):
            result = func(*args, **kwargs)
        self.names += [f"aten.{name}"] * _launches_of_aten(func, name, args, result)
        return result

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        owner = type(tl.sum) if interpreting() else CompiledKernel
        original = owner.run
        owner.run = self._interpreted(original) if interpreting() else property(self._compiled(original.fget))
        try:
            with self:
                yield
        finally:
            owner.run = original

    def _interpreted(self, original: Callable) -> Callable:
        def run(kernel, *args, grid, warmup, **kwargs):
            if not (warmup or _is_empty(grid, kernel, args, kwargs)):
                self.names.append(kernel.__name__)
            self.in_kernel = True  # the interpreter copies its arguments with aten calls of its own
            try:
                return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            finally:
                self.in_kernel = False

        return run

    def _compiled(self, launcher_of: Callable) -> Callable:
        """Every launch of a compiled kernel asks for its launcher, also one that is not looked up again."""

        def run(kernel):
            def launch(*args):
                with self._mark(kernel.src.fn.__name__):
                    return launcher_of(kernel)(*args)

            return launch

        return run

    def _mark(self, name: str) -> contextlib.AbstractContextManager:
        return torch.profiler.record_function(MARK + name) if self.marking else contextlib.nullcontext()


def _launches_of_aten(func: Any, name: str, args: tuple, result: Any) -> int:
    returns = func._schema.returns
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    tensors = [t for t in (result if isinstance(result, (tuple, list)) else (result,)) if torch.is_tensor(t)]
    is_empty = bool(tensors) and all(t.numel() == 0 for t in tensors)
    if is_view or is_empty or name in NO_LAUNCH:
        return 0
    if name in INDEXING:
        return 1 + sum(index is not None and index.dtype == torch.int32 for index in args[1])
    if name == "where":
        return 1 + sum(choice.ndim > 0 and choice.dtype != result.dtype for choice in args[1:])
    return 1


def _is_empty(grid: Any, kernel: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    sizes = grid({**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}) if callable(grid) else grid
    return any(size == 0 for size in sizes)
