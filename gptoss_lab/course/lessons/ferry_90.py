"""The pull request of `90__on_your_own`: the code before, the code after, its test, and the diff made of them.

ferry is a made-up project. What the lesson shows is the source of this file, so the diff and what runs are one.
"""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from gptoss_lab.course.lessons.loader_90 import read_files, written
from gptoss_lab.weights.checkpoint import read_header
from gptoss_lab.weights.compare import differing
from gptoss_lab.weights.streaming import stream


class Before:
    def load(parameters, files, limit):
        """Copy every tensor into its parameter."""
        for name, tensor in stream(files, memory_limit=limit, concurrency=1):
            parameters[name].copy_(tensor)


class After:
    def copy_group(parameters, group):
        """One fused call for a group of tensors."""
        targets = [parameters[name] for name, _ in group]
        torch._foreach_copy_(targets, [tensor for _, tensor in group])

    def load(parameters, files, limit):
        """Copy every tensor into its parameter, with one fused call a request.

        A tensor is good until the stream begins its next request. So ask the
        headers for the size of what comes next, and copy before it is asked for.
        """
        weights = stream(files, memory_limit=limit, concurrency=1)
        for file in files:
            sizes = [stored.spec.nbytes for stored in read_header(file)]
            group, used = [], 0
            for i, size in enumerate(sizes):
                group.append(next(weights))
                used += size
                is_last = i + 1 == len(sizes)
                if is_last or used + sizes[i + 1] > limit:
                    After.copy_group(parameters, group)
                    group, used = [], 0


class Test:
    def test_every_tensor_at_every_limit(write, zeros_like, equal):
        """Small tensors and large ones, the smallest limit to the largest."""
        for seed in range(3):
            file = write(tensors=20, largest=4096, seed=seed)
            for limit in range(4096, file.stat().st_size, 2000):
                parameters = zeros_like(file)
                After.load(parameters, [file], limit)
                assert equal(parameters, file)


def source_of(part: type, drop: str = "") -> list[str]:
    """The lines of the functions in one of the classes above, as they stand in ferry."""
    functions = [value for value in vars(part).values() if inspect.isfunction(value)]
    blocks = [textwrap.dedent(inspect.getsource(function)).replace(drop, "") for function in functions]
    return "\n\n".join(blocks).splitlines()


def diff() -> list[str]:
    """The pull request as a unified diff, one line an entry."""
    before, after = source_of(Before), source_of(After, drop="After.")
    test = source_of(Test, drop="After.")
    lines = list(difflib.unified_diff(before, after, "a/ferry/load.py", "b/ferry/load.py", lineterm="", n=9))
    lines += difflib.unified_diff([], test, "/dev/null", "b/tests/test_load.py", lineterm="")
    return lines


def run(load: Callable, files: list[Path], limit: int) -> list[str]:
    """Load with one of the two versions, and name the parameters that are wrong."""
    stored = read_files(files)
    parameters = {name: torch.zeros_like(tensor) for name, tensor in stored.items()}
    load(parameters, files, limit)
    return differing(stored, parameters)


def bytes_named(sizes: list[list[int]], seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """For each file its U8 tensors of these sizes: the first file's are f0.t00, f0.t01, ..., in this order."""
    random = torch.Generator().manual_seed(seed)
    return [
        {
            f"f{file}.t{i:02}": torch.randint(1, 256, (size,), dtype=torch.uint8, generator=random)
            for i, size in enumerate(of_file)
        }
        for file, of_file in enumerate(sizes)
    ]


def run_test() -> None:
    """Run the pull request's own test."""
    random = torch.Generator()
    paths: list[Iterator] = []

    def write(tensors: int, largest: int, seed: int) -> Path:
        random.manual_seed(seed)
        sizes = torch.randint(1, largest, (tensors - 1,), generator=random).tolist() + [largest]
        paths.append(written(*bytes_named([sizes], seed)))
        return paths[-1].__enter__()[0]

    def zeros_like(file: Path) -> dict[str, torch.Tensor]:
        return {name: torch.zeros_like(tensor) for name, tensor in read_files([file]).items()}

    try:
        Test.test_every_tensor_at_every_limit(
            write, zeros_like, lambda parameters, file: not differing(read_files([file]), parameters)
        )
    finally:
        for path in paths:
            path.__exit__(None, None, None)
