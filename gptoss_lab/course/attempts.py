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
from gptoss_lab.course.describe import describe, show, show_call, without_addresses
from gptoss_lab.course.limits import TimeUp, time_limit

if TYPE_CHECKING:
    from gptoss_lab.course.check import Case, Checker

UNCHANGED = Rules(bitwise=True, unknown_by_identity=True, wanted="before the call")
RETURNS = "does every way through the function `return`?"
ENDS = "is there a loop that never ends?"


class ChangedInput(Mismatch):
    """The function wrote to an argument that it was only to read."""


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
        self.entered = False  # or the call itself failed: the wrong number of arguments
        self.answers: list[Any] = []
        self.given: tuple[dict[str, Any], int] = ({}, 0)  # the inputs of the last call, and how many by position

    def call(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self.named_inputs(args, kwargs)
        with paused():
            before = {name: snapshot(value) for name, value in inputs.items()}
        self.given = before, len(args)
        try:
            result = self.function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self.raised, self.entered = error, error.__traceback__.tb_next is not None
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
            self.raised, self.entered = error, True
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
                    raise ChangedInput(f"the function changed its input: {changed}")


def run_attempt(case: Case, function: Callable, checker: Checker) -> Attempt:
    """Run `case` with `function`; every way in which that can end becomes an `Attempt`."""
    attempt, name = Attempt(case.label), checker.name
    guard = Guard(function, checker.may_change)
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
            found = time_limit(checker.seconds, lambda: case.run(guarded))
    except TimeUp:
        attempt.out_of_time = True
        attempt.problem, attempt.hint = f"`{name}` did not return within {checker.seconds:g} s", ENDS
    except Mismatch as mismatch:
        found = mismatch
    except (Exception, SystemExit) as error:
        attempt.problem = explain(error, guard, name)
        attempt.hint = case.hint if is_about(case, error, guard) else ""
        attempt.stub = stub_name(error) if error is guard.raised else ""
    if isinstance(found, Mismatch):
        attempt.problem, attempt.hint = found.message, found.hint or hint_for(found, case, guard, checker.may_be_none)
    elif found is not None:
        raise TypeError(f"case {case.label!r} returned {found!r}: a case returns nothing or a Mismatch")
    if attempt.problem:
        attempt.problem += the_call(guard, name, attempt.problem)
    attempt.answers = guard.answers
    attempt.printed = [without_addresses(line) for line in output.getvalue().splitlines()]
    return attempt


def hint_for(found: Mismatch, case: Case, guard: Guard, may_be_none: bool) -> str:
    """The case's hint, where the answer is of the right kind and differs; else what helps, or nothing."""
    if isinstance(found, ChangedInput):
        return ""
    seen, wanted = found.kinds or ("", "")
    if seen == "None" and guard.answers and guard.answers[-1] is None:
        return case.hint if may_be_none else RETURNS
    return case.hint if not seen or wanted == "None" else ""


def is_about(case: Case, error: BaseException, guard: Guard) -> bool:
    """Whether the case's hint answers this error: one that the case names, or its own judgement of the answer."""
    if error is guard.raised:
        return guard.entered and isinstance(error, case.hint_for)
    return isinstance(error, AssertionError) and bool(str(error))


def the_call(guard: Guard, name: str, problem: str) -> str:
    """The last call with its inputs, as they were before it, where they are small and not named already."""
    call = "" if guard.may_change else show_call(name, *guard.given)
    return f"; the call was `{call}`" if call and not problem.startswith(f"{name}(") else ""


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


def never_answers(attempts: list[Attempt]) -> bool:
    """Whether the function returned None in every case, as one without a `return` does."""
    return all(attempt.answers and all(answer is None for answer in attempt.answers) for attempt in attempts)


def constant_answer(attempts: list[Attempt], may_be_none: bool) -> str:
    """The answer, if the function gave the same one in two cases or more; otherwise nothing."""
    answers = [answer for attempt in attempts for answer in attempt.answers]
    if len([attempt for attempt in attempts if attempt.answers]) < 2 or (answers[0] is None and not may_be_none):
        return ""
    if any(difference(answer, answers[0], "", Rules()) for answer in answers):
        return ""
    return show(answers[0])
