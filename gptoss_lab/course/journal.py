"""Remember which exercises were passed, in one file on the learner's own machine.

The file is `gptoss-lab/progress.json` in the user's state folder (`$XDG_STATE_HOME`, by default
`~/.local/state`). The environment variable GPTOSS_LAB_PROGRESS names another file, or says `off`. It holds
the ids of passed exercises and when each was first passed, and nothing else. Nothing is sent anywhere;
deleting the file forgets everything.

Only a kernel that works for a lesson in JupyterLab, Notebook or VS Code writes it: in CI, under pytest and
nbval, in `gptoss-lab run`, in a solved twin and in a plain Python process nothing is written.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SETTING = "GPTOSS_LAB_PROGRESS"
SOLUTIONS = "solutions"  # the same as in notebooks.py, which takes long to import
OFF = ("off", "0", "no", "false")
LOCK_SECONDS = 5.0


class DamagedJournal(ValueError):
    """The file is there, and is no journal."""


def journal_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where progress is kept; None if it is switched off."""
    chosen = environment.get(SETTING, "").strip()
    if chosen.lower() in OFF:
        return None
    if chosen:
        return Path(chosen).expanduser()
    state = environment.get("XDG_STATE_HOME", "")
    # The XDG specification: a relative path counts as none.
    folder = Path(state) if os.path.isabs(state) else Path("~/.local/state").expanduser()
    return folder / "gptoss-lab" / "progress.json"


def open_notebook() -> Path | None:
    """The notebook that this kernel works for, as its server names it; None in any other process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if not hasattr(shell, "kernel"):
        return None
    # VS Code has no variable in the environment; a server of Jupyter has none among the names.
    name = shell.user_ns.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME", "")
    return Path(name) if str(name).endswith(".ipynb") else None


def is_learners(notebook: Path | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a pass in `notebook` is a learner's: not a solved twin's, a test's or a CI job's."""
    if notebook is None or notebook.parent.name == SOLUTIONS:
        return False
    if environment.get("CI", "").lower() not in ("", "0", "false"):
        return False
    # pytest sets both, and a kernel inherits them.
    return not {"PYTEST_VERSION", "PYTEST_CURRENT_TEST"} & set(environment)


def remember(exercise: str) -> None:
    """Keep that `exercise` was passed, if this kernel is a learner's. What goes wrong is one line on stderr."""
    file = journal_file()
    if file is None or not is_learners(open_notebook()):
        return
    try:
        add(file, exercise)
    except OSError as error:
        reason = error.strerror or error
        print(f"progress is not kept in {file}: {reason}. {SETTING}=off stops this line.", file=sys.stderr)


def passed(file: Path) -> dict[str, str]:
    """Each passed exercise and when, in ISO 8601 (UTC), it was first passed. Raises DamagedJournal."""
    return load(file)["passed"]


def load(file: Path) -> dict[str, Any]:
    """The whole journal; an empty one if there is no file. Keys that are not known are kept."""
    try:
        journal = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"passed": {}}
    except ValueError as error:
        raise DamagedJournal(f"{file} is no JSON: {error}") from error
    entries = journal.get("passed") if isinstance(journal, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(when, str) for when in entries.values()):
        raise DamagedJournal(f"{file} has no 'passed' with a time for each exercise")
    return journal


def add(file: Path, exercise: str) -> None:
    """Add `exercise` to the journal, which may be damaged or in use by another kernel. Raises OSError."""
    from gptoss_lab.course.notebooks import write_beside

    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file):
        try:
            journal = load(file)
        except DamagedJournal:
            set_aside(file)
            journal = {"passed": {}}
        if exercise not in journal["passed"]:
            journal["passed"][exercise] = datetime.now(UTC).isoformat(timespec="seconds")
            write_beside(file, json.dumps(journal, indent=1) + "\n")


def set_aside(file: Path) -> Path:
    """Rename a damaged journal to the first free `progress.json.damaged-N`."""
    number = 1
    while (aside := file.with_name(f"{file.name}.damaged-{number}")).exists():
        number += 1
    return file.rename(aside)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock beside `file`, so that two kernels do not lose each other's entries. Raises TimeoutError."""
    import fcntl  # POSIX only, as the course is

    with file.with_name(f"{file.name}.lock").open("w") as lock:
        give_up = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise TimeoutError(f"another process holds {lock.name}") from None
                time.sleep(0.02)
        yield  # closing the file gives the lock back
