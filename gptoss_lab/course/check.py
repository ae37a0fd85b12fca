"""The checkers' base: run a learner's function on named cases and say, in plain words, what was seen.

A lesson's checkers stand in `gptoss_lab/course/lessons/lesson_NN.py`:

    double = Checker("00.1", "double", done="every value is doubled, and the input is left alone")

    @double.case("one value")
    def _(double):
        expect_equal(double(torch.tensor([3.0])), torch.tensor([6.0]))

    @double.case("a strided view", hint="The input need not be contiguous: do not call `.view`.")
    def _(double):
        values = torch.arange(6.0).reshape(2, 3).t()  # [3, 2], not contiguous
        expect_equal(double(values), torch.tensor([[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]))

    @double.cost("one new tensor, no more", hint="Multiply once.")
    def _(double):
        values = torch.ones(1000)
        with count_copies() as copies:
            double(values)
        if copies.allocated > values.nbytes:
            raise Mismatch(f"{copies.allocated} bytes were allocated, {values.nbytes} are enough")

and a notebook calls `double(my_function)`, which prints a report that never changes for the same function.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from gptoss_lab.course import journal
from gptoss_lab.course.attempts import RETURNS, Attempt, never_answers, run_attempt
from gptoss_lab.course.compare import Mismatch, expect_equal
from gptoss_lab.course.costs import LiveTensors, ProducedWhenSeen, count_copies
from gptoss_lab.course.describe import show
from gptoss_lab.course.stale import newer_version
from gptoss_lab.course.wording import count_of, labels, pattern, printed_lines

__all__ = [
    "Case",
    "Checker",
    "Errors",
    "LiveTensors",
    "Mismatch",
    "ProducedWhenSeen",
    "Verdict",
    "all_checkers",
    "assert_rejects",
    "checkers_in",
    "count_copies",
    "expect_equal",
    "expect_raises",
]

INDENT = "      "
Errors = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True)
class Case:
    """One trial of the learner's function. `run` returns nothing, or raises or returns a Mismatch.

    The hint is for an answer of the right kind that differs. `hint_for` are the errors that it helps with, too.
    """

    label: str
    run: Callable[[Callable], Mismatch | None]
    hint: str = ""
    hint_for: Errors = ()


@dataclass(frozen=True)
class Verdict:
    """What a check found, and the lines of its report."""

    passed: bool
    attempted: bool
    lines: tuple[str, ...] = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(self.lines)


class Checker:
    """Check one exercise: `exercise` is its id ("10.1"), `name` the function that the learner writes.

    Cases run in order, each for at most `seconds`. Costs run only when every case holds. Inputs are compared
    before and after each call, and must be unchanged; `may_change` lists the arguments, by position or name,
    that need not be. `may_be_none` says that None can be an answer, so that it is not taken for a forgotten
    `return`. `done` is the line after a pass. Calling the checker prints its report and returns None;
    `last` keeps the verdict, and a learner's pass is remembered (see `journal`). A call with the package's own
    function, which a lesson imports below the exercise, is told so and checks nothing; `verdict` takes it.
    """

    def __init__(
        self,
        exercise: str,
        name: str,
        *,
        cases: tuple[Case, ...] = (),
        costs: tuple[Case, ...] = (),
        done: str = "",
        may_change: tuple[int | str, ...] = (),
        may_be_none: bool = False,
        seconds: float = 10.0,
    ) -> None:
        self.exercise, self.name, self.done = exercise, name, done
        self.cases, self.costs = list(cases), list(costs)
        self.may_change, self.may_be_none, self.seconds = may_change, may_be_none, seconds
        self.last: Verdict | None = None

    def __repr__(self) -> str:
        return f"Checker({self.exercise!r}, {self.name!r})"

    def case(self, label: str, hint: str = "", hint_for: Errors = ()) -> Callable[[Callable], Case]:
        """Declare a case: decorates a function that takes the learner's function."""
        return lambda run: _add(self.cases, Case(label, run, hint, hint_for))

    def cost(self, label: str, hint: str = "") -> Callable[[Callable], Case]:
        """Declare a cost check: like a case, but run only when every case holds."""
        return lambda run: _add(self.costs, Case(label, run, hint))

    def __call__(self, function: Callable) -> None:
        if newer := newer_version(function, self.name):
            print(f"{self.exercise}  {newer}: mend it and run it again. The lines below judge your previous version.")
        self.last = self._packages_own(function) if is_packages_own(function) else self.verdict(function)
        print(self.last)
        if self.last.passed:
            journal.remember(self.exercise)

    def verdict(self, function: Callable) -> Verdict:
        """Check without printing."""
        if not self.cases:
            raise ValueError(f"checker {self.exercise} has no cases: declare at least one")
        if not callable(function):
            return self._report(False, [f"✗ pass the function `{self.name}` itself, not {show(function)}"])
        attempts = self._attempt_all(self.cases, function)
        if attempts[0].stub:
            return self._not_attempted(attempts[0].stub, getattr(function, "__name__", ""))
        failed = [attempt for attempt in attempts if attempt.problem]
        if failed:
            return self._failed("case", attempts, failed)
        costs = self._attempt_all(self.costs, function)
        failed = [attempt for attempt in costs if attempt.problem]
        if failed:
            return self._failed("cost", costs, failed)
        return self._passed(attempts, costs)

    def _attempt_all(self, cases: list[Case], function: Callable) -> list[Attempt]:
        """Run the cases in order; a stub, or a case that ran out of time, ends the check."""
        attempts: list[Attempt] = []
        for case in cases:
            attempts.append(run_attempt(case, function, self))
            if attempts[-1].out_of_time or attempts[0].stub:
                break
        return attempts

    def _packages_own(self, function: Callable) -> Verdict:
        name = getattr(function, "__name__", self.name)
        line = f"that is the package's `{name}`: run your own cell above first, then this one."
        return replace(self._report(False, [line]), attempted=False)

    def _not_attempted(self, stub: str, own_name: str) -> Verdict:
        if stub in (self.name, own_name):
            line = f"not attempted yet: write `{self.name}`, then run this cell again."
        else:
            line = f"not attempted yet: `{self.name}` waits for `{stub}`, which is still to be written."
        return replace(self._report(False, [line]), attempted=False)

    def _passed(self, attempts: list[Attempt], costs: list[Attempt]) -> Verdict:
        lines = [f"✓ {count_of(attempts, 'case')}: {labels(attempts)}"]
        lines += [f"✓ {count_of(costs, 'cost')}: {labels(costs)}"] if costs else []
        lines += [self.done] if self.done else []
        return self._report(True, lines + printed_lines(attempts))

    def _failed(self, kind: str, attempts: list[Attempt], failed: list[Attempt]) -> Verdict:
        first = failed[0]
        lines = [f"✗ {kind} '{first.label}': {first.problem}"]
        hint = RETURNS if first.hint and self.may_be_none and never_answers(attempts) else first.hint
        lines += [f"hint: {hint}"] if hint else []
        lines += [f"also failing: {labels(failed[1:])}"] if failed[1:] else []
        if kind == "case" and not first.out_of_time and len(attempts) > 1:
            lines.append(pattern(attempts, failed, self.may_be_none))
        return self._report(False, lines + printed_lines(failed))

    def _report(self, passed: bool, lines: list[str]) -> Verdict:
        first, *rest = lines
        text = [f"{self.exercise}  {first}", *(INDENT + line for line in rest)]
        return Verdict(passed, True, tuple(text))


def is_packages_own(function: Callable) -> bool:
    """Whether `function` was written in this package. One that `functools.wraps` dresses up as such was not."""
    module = getattr(function, "__module__", None) or ""
    home = getattr(function, "__globals__", {}).get("__name__", module)
    return all(str(name).split(".")[0] == __package__.split(".")[0] for name in (module, home))


def _add(cases: list[Case], case: Case) -> Case:
    if case.label in [other.label for other in cases]:
        raise ValueError(f"two cases are called {case.label!r}: give each its own label")
    cases.append(case)
    return case


def expect_raises(function: Callable, error: type[Exception], *args: Any, mentions: tuple[str, ...] = ()) -> None:
    """Raise `Mismatch` unless `function(*args)` raises `error` with each of `mentions` in its text."""
    try:
        result = function(*args)
    except error as raised:
        absent = [word for word in mentions if word not in str(raised)]
        if absent:
            raise Mismatch(f"the {error.__name__} does not mention {show(absent)}: it says {str(raised)!r}") from None
        return
    raise Mismatch(f"returned {show(result)}, expected a {error.__name__}")


def checkers_in(module: ModuleType) -> list[Checker]:
    """The checkers that a lesson's module declares, in their order."""
    return [value for value in vars(module).values() if isinstance(value, Checker)]


def all_checkers(package: str = "gptoss_lab.course.lessons") -> dict[str, Checker]:
    """Every checker of every lesson, by exercise id. Two with one id are an error."""
    found: dict[str, Checker] = {}
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        for checker in checkers_in(importlib.import_module(f"{package}.{info.name}")):
            if found.get(checker.exercise, checker) is not checker:
                raise ValueError(f"exercise {checker.exercise} has two checkers, the second in {info.name}")
            found[checker.exercise] = checker
    return found


def assert_rejects(checker: Checker, wrong: Mapping[str, Callable]) -> None:
    """Raise AssertionError naming the wrong answers that `checker` accepts or takes for not attempted."""
    if not wrong:
        raise AssertionError(f"no wrong answers were given for exercise {checker.exercise}")
    for label, function in wrong.items():
        verdict = checker.verdict(function)
        if verdict.passed or not verdict.attempted:
            raise AssertionError(f"exercise {checker.exercise} does not reject '{label}':\n{verdict}")
