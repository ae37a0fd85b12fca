"""Notice that the cell with the learner's newest version did not run, so that an older function is checked."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
from collections.abc import Callable


def newer_version(function: Callable, name: str) -> str:
    """Say what became of the last executed cell that writes `name`, if `function` is not from that cell.

    Empty if it is, outside IPython, and wherever it cannot be told.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    cells = shell.history_manager.input_hist_raw if shell else []
    cell = next((cell for cell in reversed(cells) if re.search(rf"^def {name}\b", cell, re.MULTILINE)), None)
    if cell is None:
        return ""
    try:
        code = shell.transform_cell(cell)
        written = {each.name for each in ast.parse(code).body if isinstance(each, ast.FunctionDef)}
    except (SyntaxError, ValueError) as error:
        return f"the cell with your last `def {name}` ended with {type(error).__name__}"
    if name in written and is_from_elsewhere(function, name, code):
        return f"the cell with your last `def {name}` stopped above it"
    return ""


def is_from_elsewhere(function: Callable, name: str, code: str) -> bool:
    """Whether `function` was written under `name` in another cell than the one with `code`."""
    made_by = getattr(inspect.unwrap(function), "__code__", None)
    if made_by is None or made_by.co_name != name or function.__module__ != "__main__":
        return False
    return "".join(linecache.getlines(made_by.co_filename)).strip() != code.strip()
