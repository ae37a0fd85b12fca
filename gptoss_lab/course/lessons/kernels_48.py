"""Checkers whose answer is a function under `triton.jit`, and the ways in which they launch it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

import gptoss_lab.moe  # noqa: F401  It chooses the interpreter, before anything imports triton.

# isort: split
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton.runtime.jit import KernelInterface

from gptoss_lab.course.check import Checker, Mismatch, Verdict
from gptoss_lab.course.lessons.one_launch_48 import launch_with, make_plan_for_one
from gptoss_lab.moe.generations import interpreting
from gptoss_lab.moe.routing import Routing

POISON = -77  # what stands in memory that a kernel is to write, and around it
NO_EXPERT = 0x7FFF


class KernelChecker(Checker):
    """A checker whose cases get `run(way, *inputs)`, which calls `way(kernel, *inputs)`.

    A kernel cannot be called like a function, so `way` launches it and returns what it wrote. The kernel itself is
    `run.__wrapped__.launched`.
    """

    def __call__(self, function: Any) -> None:
        super().__call__(launcher(function))

    def verdict(self, function: Any) -> Verdict:
        """Check without printing. A kernel whose body names NotImplementedError is not attempted."""
        run = launcher(function)
        code = getattr(getattr(run, "__wrapped__", run), "__code__", None)
        if code is not None and "NotImplementedError" in code.co_names:
            return self._not_attempted(self.name, self.name)
        if callable(run) and not hasattr(run, "launched"):
            return self._report(False, [f"✗ `{self.name}` is not a kernel: put `@triton.jit` above its `def`"])
        return super().verdict(run)


def launcher(kernel: Any) -> Any:
    """Return the function that the cases call; what is no kernel, and what is such a function, stays as it is."""
    if hasattr(kernel, "launched"):
        return kernel
    kernel = inspect.unwrap(kernel, stop=lambda each: isinstance(each, KernelInterface))
    if not isinstance(kernel, KernelInterface):
        return kernel

    @functools.wraps(kernel.fn)
    def run(way: Callable, *inputs: Any) -> Any:
        try:
            return way(kernel, *inputs)
        except InterpreterError as error:
            cause: BaseException = error
            while isinstance(cause, InterpreterError) and cause.__cause__ is not None:
                cause = cause.__cause__
            raise cause from None

    run.launched = kernel
    return run


class Fenced:
    """Memory for `n` values with a margin in front and behind, all of it poisoned."""

    def __init__(self, name: str, n: int, dtype: torch.dtype, margin: int) -> None:
        self.name, self.n, self.margin = name, n, margin
        self.whole = torch.full((n + 2 * margin,), POISON, dtype=dtype, device=device())
        self.start = self.whole[margin:]  # what a kernel gets: a tensor of no entries would have the address 0

    def read(self) -> torch.Tensor:
        """Return the values on the CPU. Mismatch if the margin was written."""
        whole = self.whole.cpu()
        outside = whole != POISON
        outside[self.margin : self.margin + self.n] = False
        places = (outside.nonzero().flatten() - self.margin).tolist()
        inside = whole[self.margin : self.margin + self.n]
        left_out = (inside == POISON).nonzero().flatten().tolist()
        if places:
            hint = "Give the store a mask."
            if left_out:
                why = "Are all addresses rows, or slots, as the text says, and no two alike?"
                if left_out[0] == 0:
                    why = "Rows begin at 0, and a slot does not count itself."
                hint = f"Entry {left_out[0]} was left out. {why}"
            raise Mismatch(
                f"the kernel wrote outside of `{self.name}`, which has {self.n} entries: at {places[0]}", hint=hint
            )
        if len(left_out) == self.n > 0:
            raise Mismatch(f"nothing was written to `{self.name}`", hint="Store it: what a kernel returns is lost.")
        if left_out:
            message = f"entry {left_out[0]} was never written to `{self.name}`"
            raise Mismatch(message, hint="Each entry is written once. Do two slots go to one place?")
        return inside


def device() -> str:
    return "cuda" if torch.cuda.is_available() and not interpreting() else "cpu"


def run_rank(kernel: Any, experts: torch.Tensor) -> torch.Tensor:
    """Launch `kernel[(1,)](Experts, Rows, n, N)` and return Rows int32 [n].

    In front of and behind Experts there is more memory, full of zeros: who reads there sees slots of expert 0.
    """
    n = len(experts)
    margin = triton.next_power_of_2(max(n, 1))
    around = torch.zeros(n + 2 * margin, dtype=torch.int32)
    around[margin : margin + n] = experts
    given, rows = around.clone().to(device()), Fenced("Rows", n, torch.int32, margin)
    kernel[(1,)](given[margin:], rows.start, n, N=margin, num_warps=8)  # with 4 or 32 compiling can take a minute
    if not torch.equal(given.cpu(), around):
        raise Mismatch("the kernel wrote to `Experts`, which is for reading only", hint="Store into `Rows` alone.")
    return rows.read()


@triton.jit
def place_alone(Experts, Weights, Slots, IsPick, Gate, Combine, Dispatch, N: tl.constexpr, PLACE: tl.constexpr):
    """Call PLACE with N picks out of memory."""
    lanes = tl.arange(0, N)
    experts, weights = tl.load(Experts + lanes), tl.load(Weights + lanes)
    slots, is_pick = tl.load(Slots + lanes), tl.load(IsPick + lanes) != 0
    PLACE(Gate, Combine, Dispatch, experts, weights, slots, is_pick)


def run_place(kernel: Any, experts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Place picks given as lists of one length, a power of two; None is no pick. Return what was written.

    As in a router with k not a power of two, a lane without a pick has the slot of another token's pick.
    """
    k = sum(expert is not None for expert in experts[0])
    lanes = [(token * k + j, expert) for token, row in enumerate(experts) for j, expert in enumerate(row)]
    n, slots = len(lanes), len(experts) * k
    columns = {
        "experts": [NO_EXPERT if expert is None else expert for _, expert in lanes],
        "slots": [slot for slot, _ in lanes],
        "is_pick": [int(expert is not None) for _, expert in lanes],
    }
    given = {name: torch.tensor(values, dtype=torch.int32, device=device()) for name, values in columns.items()}
    weights = torch.arange(1.0, n + 1, device=device()) / 8
    written = {
        "Gate": Fenced("Gate", slots, torch.float32, 2 * n),
        "Combine": Fenced("Combine", slots, torch.int32, 2 * n),
        "Dispatch": Fenced("Dispatch", slots, torch.int32, 2 * n),
    }
    outputs = [memory.start for memory in written.values()]
    place_alone[(1,)](given["experts"], weights, given["slots"], given["is_pick"], *outputs, N=n, PLACE=kernel)
    return {name: memory.read() for name, memory in written.items()}


def run_route(kernel: Any, logits: torch.Tensor, k: int) -> Routing:
    """Route with `kernel` in the middle of the one launch, in poisoned memory with a margin."""
    plan = make_plan_for_one(logits, k)
    margin = 2 * plan.options["ROWS"] * plan.options["PICKS"]
    out = Fenced("Out", plan.total, torch.int32, margin)
    gate = Fenced("Gate", plan.gates, logits.dtype, margin)
    launch_with(kernel, plan, logits, gate.start, out.start)
    out.read(), gate.read()
    return plan.read(gate.start[: plan.gates], out.start[: plan.total])
