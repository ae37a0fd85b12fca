"""The line of code that is running, outside of this package."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType

import torch

TOOLS = tuple(str(Path(file).parent) + os.sep for file in (__file__, torch.__file__))
MOST_FRAMES = 12


@dataclass(frozen=True)
class Line:
    """A line of code. `caller` is the line that called it, if it lies in a generator: who drove that one."""

    file: str
    number: int
    function: str
    caller: Line | None = None

    def __str__(self) -> str:
        here = f"{Path(self.file).name}:{self.number} in {self.function}"
        return f"{here}, called from {self.caller}" if self.caller else here


def running_line() -> Line:
    """The innermost line that runs, outside of this package and of torch.

    Where that line is in a generator, the lines that drive it follow as `caller`, up to the first plain function.
    """
    frame: FrameType | None = sys._getframe(1)
    frames = []
    while frame is not None and len(frames) < MOST_FRAMES:
        if not is_tool(frame.f_code.co_filename):
            frames.append(frame)
            if not frame.f_code.co_flags & CO_GENERATOR:
                break
        frame = frame.f_back
    line = None
    for frame in reversed(frames):
        line = Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, line)
    return line or Line("<no Python code>", 0, "?")


def is_tool(file: str) -> bool:
    """Tell whether a file belongs to this package or to torch."""
    return file.startswith(TOOLS)
