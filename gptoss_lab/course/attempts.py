"""Run one case of a check with the learner's function: guarded, within a time limit, its output captured."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import linecache
import opcode
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gptoss_lab.course.compare import Mismatch, Rules, difference, snapshot
from gptoss_lab.course.costs import paused
from gptoss_lab.course.describe import describe, show, without_addresses
from gptoss_lab.course.limits import TimeUp, time_limit

if TYPE_CHECKING:
    from gptoss_lab.course.check import Case

UNCHANGED = Rules(bitwise=True, unknown_by_identity=True, wanted="before the call")


@dataclass
class Attempt:
    """What came of one case. `problem` is None where it holds; `stub` names a function not written yet."""

    label: str
    problem: str | None = None
    hint: str = ""
    stub: str = ""
    out_of_time: bool = False
    answers: list[Any] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)


class Guard:
    """The learner's function, watched: what it raised, what it returned, whether it changed its inputs."""

    def __init__(self, function: Callable, may_change: tuple[int | str, ...]) -> None:
        self.function, self.may_change = function, may_change
        self.raised: BaseException | None = None
        self.answers: list[Any] = []

    def call(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self.named_inputs(args, kwargs)
        with paused():
            before = {name: snapshot(value) for name, value in inputs.items()}
        try:
            result = self.function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self.raised = error
            raise
        with paused():
            self.answers.append(snapshot(result))
        if inspect.isgenerator(result):
            return self.follow(result, inputs, before)
        self.compare_inputs(inputs, before)
        return result

    def follow(self, items: Iterator, inputs: dict[str, Any], before: dict[str, Any]) -> Iterator:
        """A generator works while it is consumed, so its errors and changes are noticed then."""
        try:
            yield from items
        except (Exception, SystemExit) as error:
            self.raised = error
            raise
        self.compare_inputs(inputs, before)

    def named_inputs(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The inputs that must not change, by the names that the learner gave them."""
        try:
            names = list(inspect.signature(self.function).parameters)
        except (TypeError, ValueError):
            names = []
        kept = {}
        for i, value in enumerate(args):
            name = names[i] if i < len(names) else f"argument {i + 1}"
            if i not in self.may_change and name not in self.may_change:
                kept[name] = value
        return kept | {name: value for name, value in kwargs.items() if name not in self.may_change}

    def compare_inputs(self, inputs: dict[str, Any], before: dict[str, Any]) -> None:
        with paused():
            for name, value in inputs.items():
                changed = difference(value, before[name], f"`{name}`", UNCHANGED)
                if changed:
                    raise Mismatch(f"the function changed its input: {changed}")


def run_attempt(case: Case, function: Callable, name: str, may_change: tuple, seconds: float) -> Attempt:
    """Run `case` with `function`; every way in which that can end becomes an `Attempt`."""
    attempt = Attempt(case.label, hint=case.hint)
    guard = Guard(function, may_change)
    # A plain function, so that a case may ask for its name or signature.
    guarded = functools.update_wrapper(lambda *args, **kwargs: guard.call(*args, **kwargs), function, updated=())
    output, found = io.StringIO(), None
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # a warning's text carries paths
            found = time_limit(seconds, lambda: case.run(guarded))
    except TimeUp:
        attempt.out_of_time = True
        attempt.problem = f"`{name}` did not return within {seconds:g} s: is there a loop that never ends?"
    except Mismatch as mismatch:
        found = mismatch
    except (Exception, SystemExit) as error:
        attempt.problem = explain(error, guard, name)
        attempt.stub = stub_name(error) if error is guard.raised else ""
    if isinstance(found, Mismatch):
        attempt.problem, attempt.hint = found.message, found.hint or case.hint
    elif found is not None:
        raise TypeError(f"case {case.label!r} returned {found!r}: a case returns nothing or a Mismatch")
    attempt.answers = guard.answers
    attempt.printed = [without_addresses(line) for line in output.getvalue().splitlines()]
    return attempt


def explain(error: BaseException, guard: Guard, name: str) -> str:
    """One line about an exception: whose it was, what it said, and the line of the learner's code."""
    text = first_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    if error is guard.raised:
        line = learners_line(error, guard.function)
        return f"`{name}` raised {text}" + (f", at the line `{line}`" if line else "")
    if isinstance(error, AssertionError) and str(error):
        return first_line(str(error))
    returned = f"`{name}` returned {describe(guard.answers[-1])}" if guard.answers else f"`{name}` was never called"
    return f"{returned}, which the checker could not use ({text})"


def first_line(text: str, limit: int = 200) -> str:
    line = without_addresses(text.strip().splitlines()[0])
    return line if len(line) <= limit else line[: limit - 4] + " ..."


def learners_line(error: BaseException, function: Callable) -> str:
    """The source of the last line that ran in the file (the cell) of the learner's function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == code.co_filename]
    return linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip() if frames else ""


def stub_name(error: BaseException) -> str:
    """The name of the function that says `raise NotImplementedError`; empty if compiled code raised it."""
    if not isinstance(error, NotImplementedError) or error.__traceback__ is None:
        return ""
    *_, last = (frame for frame in frames_of(error))
    code = last.tb_frame.f_code
    return code.co_name if opcode.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS" else ""


def frames_of(error: BaseException) -> Iterator[TracebackType]:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next


def constant_answer(attempts: list[Attempt]) -> str:
    """The answer, if the function gave the same one in two cases or more; otherwise nothing."""
    answers = [answer for attempt in attempts for answer in attempt.answers]
    if len([attempt for attempt in attempts if attempt.answers]) < 2 or answers[0] is None:
        return ""
    if any(difference(answer, answers[0], "", Rules()) for answer in answers):
        return ""
    return show(answers[0])
