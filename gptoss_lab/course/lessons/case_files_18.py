"""The six case files as patients: a number, a loader, and what it makes of a checkpoint. Nothing says what is wrong."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.multiprocessing.reductions import StorageWeakRef

from gptoss_lab.course.lessons.settled_22 import settled
from gptoss_lab.course.lessons.stand_ins_18 import OneStepLate
from gptoss_lab.weights.borrow import Line
from gptoss_lab.weights.cases import CASES, Case, Parameters, expected_parameters, write_case_checkpoint
from gptoss_lab.weights.compare import differing
from gptoss_lab.weights.plan import Plan, plan
from gptoss_lab.weights.streaming import stream

Weights = Iterable[tuple[str, torch.Tensor]]


def late(load: Callable) -> Callable:
    """The loader with a thread of its own at each call, one step late."""
    return lambda model, weights: load(model, weights, executor=OneStepLate())


def unchanged(weights: Weights) -> Weights:
    """No tool."""
    return weights


@dataclass(frozen=True)
class CaseFile:
    """One loader and the checkpoint that it is given."""

    number: int
    case: Case
    path: Path

    @property
    def faulty(self) -> Callable:
        """The loader. Where it hands tensors to a thread, that one is always one step late, not now and then."""
        return late(self.case.faulty) if self.in_threads else self.case.faulty

    @property
    def fixed(self) -> Callable:
        """The same loader, mended."""
        return late(self.case.fixed) if self.in_threads else self.case.fixed

    @property
    def in_threads(self) -> bool:
        return self.case.name == "worker_thread"

    @cached_property
    def expected(self) -> dict[str, torch.Tensor]:
        """The parameters that it should make, computed from what safetensors reads."""
        return expected_parameters(load_file(self.path), self.case.name)

    def empty_model(self) -> Parameters:
        """A model to be filled."""
        return Parameters(self.expected)

    def stream(self, limit: int) -> Weights:
        """Its checkpoint through the real streamer; a late read finds the new bytes, each time."""
        return settled(stream(self.path, memory_limit=limit, concurrency=1), self.plan(limit))

    def plan(self, limit: int) -> Plan:
        """The plan of that stream."""
        return plan(self.path, limit)

    def wrong(self, limit: int, load: Callable | None = None, tool: Callable[[Weights], Weights] = unchanged) -> list:
        """Load, with a tool around the stream, and name the parameters that are not as expected."""
        model = self.empty_model()
        (load or self.faulty)(model, tool(self.stream(limit)))
        return differing(self.expected, model.tensors)


def open_case_files(folder: str | Path) -> list[CaseFile]:
    """Write the checkpoint of the cases to a folder, if it is not there, and return all six."""
    path = Path(folder) / "model.safetensors"
    if not path.exists():  # a file that is written anew changes under those who have it mapped
        write_case_checkpoint(folder)
    return [CaseFile(number, case, path) for number, case in enumerate(CASES.values(), 1)]


def source_line(line: Line) -> str:
    """The text of a line of code."""
    return linecache.getline(line.file, line.number).strip()


def waits(weights: Weights, load: Callable) -> dict[str, tuple[int, int]]:
    """For each tensor of a stream, the step at which it came and the step at which nobody held it any more."""
    held: dict[str, tuple[StorageWeakRef, int]] = {}
    ended: dict[str, tuple[int, int]] = {}
    step = 0

    def look() -> None:
        for name, (storage, start) in list(held.items()):
            if storage.expired():
                ended[name] = start, step
                del held[name]

    def follow(item: tuple[str, torch.Tensor]) -> tuple[str, torch.Tensor]:
        nonlocal step
        look()
        held[item[0]] = StorageWeakRef(item[1].untyped_storage()), step
        step += 1
        return item

    load(map(follow, weights))
    look()
    return ended | {name: (start, step) for name, (_, start) in held.items()}
