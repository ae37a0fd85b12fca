"""The checkers' base: what it says of right, wrong, unfinished and misbehaving answers."""

from __future__ import annotations

import re
import sys
import threading
import time
import types

import pytest
import torch

from gptoss_lab.course import journal
from gptoss_lab.course.check import (
    Case,
    Checker,
    Mismatch,
    all_checkers,
    assert_rejects,
    checkers_in,
    count_copies,
    expect_equal,
    expect_raises,
)

SECONDS = 0.5


@pytest.fixture
def double() -> Checker:
    """Three cases and a cost for a function that doubles a tensor."""
    checker = Checker("10.1", "double", done="It holds for every size.", seconds=SECONDS)

    @checker.case("one value")
    def _(double):
        expect_equal(double(torch.tensor([3.0])), torch.tensor([6.0]))

    @checker.case("odd sizes", hint="Take the shape from the input.")
    def _(double):
        expect_equal(double(torch.ones(3, 5)), torch.full((3, 5), 2.0))

    @checker.case("no values")
    def _(double):
        expect_equal(double(torch.ones(0)), torch.ones(0))

    @checker.cost("one new tensor", hint="Multiply once.")
    def _(double):
        values = torch.ones(1000)
        with count_copies() as copies:
            double(values)
        if copies.allocated > values.nbytes:
            return Mismatch(f"{copies.allocated} bytes were allocated, {values.nbytes} are enough")

    return checker


def right(values):
    return values * 2


def stub(values):
    raise NotImplementedError


def for_ever(values):
    while True:
        try:
            while True:
                pass
        except:  # noqa: E722, B001 - the kind of learner's code that must not hang the notebook
            pass


def half_done(values):
    if values.numel() > 1:
        raise NotImplementedError
    return values * 2


WRONG = {
    "a constant": (lambda values: torch.tensor([6.0]), "every time: the answer has to depend on the input"),
    "right for one size": (lambda v: v * 2 if v.numel() == 1 else v.half(), "Only 'one value' holds"),
    "changes its input": (lambda values: values.mul_(2), "changed its input: `values`"),
    "never returns": (for_ever, f"did not return within {SECONDS:g} s"),
    "raises": (lambda values: values.no_such_thing, "raised AttributeError"),
    "returns nothing": (lambda values: None, "does every way through the function `return`?"),
    "another type": (lambda values: (values * 2).tolist(), "is a list of 1 items, expected a tensor"),
    "another dtype": (lambda values: values.double() * 2, "dtype torch.float64, expected torch.float32"),
    "another shape": (lambda values: (values * 2)[None], "has shape [1, 1], expected [1]"),
    "wrong values": (lambda values: values * 3, "first at [0]: 9.0, expected 6.0"),
    "takes no argument": (lambda: 3, "raised TypeError"),
    "leaves the kernel": (lambda values: sys.exit(1), "raised SystemExit"),
    "unfinished in one branch": (half_done, "raised NotImplementedError"),
    "copies once more": (lambda values: values.clone() * 2, "cost 'one new tensor': 8000 bytes"),
    "not a function": (7, "pass the function `double` itself, not 7"),
}


@pytest.mark.parametrize("label", WRONG)
def test_a_wrong_answer_is_rejected_with_feedback_of_its_own(double, label):
    function, feedback = WRONG[label]
    verdict = double.verdict(function)
    assert not verdict.passed and verdict.attempted
    assert feedback in str(verdict)


def test_the_right_answer_passes_and_every_case_is_listed(double):
    verdict = double.verdict(right)
    assert verdict.passed and verdict.attempted
    assert verdict.lines == (
        "10.1  ✓ 3 cases: one value; odd sizes; no values",
        "      ✓ 1 cost: one new tensor",
        "      It holds for every size.",
    )


def test_a_stub_is_a_calm_line(double):
    verdict = double.verdict(stub)
    assert not verdict.passed and not verdict.attempted
    assert verdict.lines == ("10.1  not attempted yet: write `double`, then run this cell again.",)


def test_a_function_that_calls_a_stub_waits_for_it(double):
    verdict = double.verdict(lambda values: stub(values))
    assert not verdict.attempted
    assert "`double` waits for `stub`" in verdict.lines[0]


def test_a_stub_is_called_once(double):
    calls = []

    def counted(values):
        calls.append(values)
        raise NotImplementedError

    double.verdict(counted)
    assert len(calls) == 1


def test_an_operation_that_pytorch_lacks_is_no_stub():
    checker = Checker("1.1", "lower")
    checker.case("meta")(lambda lower: lower(torch.ones(2, device="meta")))
    verdict = checker.verdict(lambda values: values.tolist() or torch.ops.aten.no_such_op)
    assert verdict.attempted and not verdict.passed


def test_calling_prints_the_report_and_returns_nothing(double, capsys):
    assert double(right) is None
    assert capsys.readouterr().out == str(double.last) + "\n"
    assert double.last.passed


def test_hints_follow_the_first_failing_case(double):
    lines = double.verdict(lambda v: v * 2 if v.ndim == 1 else v).lines
    assert lines[0].startswith("10.1  ✗ case 'odd sizes': ")
    assert lines[1] == "      hint: Take the shape from the input."
    assert lines[-1] == "      2 of 3 cases hold."


HINTS = ("Take the shape from the input.", "Say no.", "Look everywhere.")


@pytest.fixture
def find() -> Checker:
    """Every case has a hint. None is an answer, and one case is about an error."""
    checker = Checker("1.1", "find", may_be_none=True, seconds=SECONDS)

    @checker.case("there", hint=HINTS[2], hint_for=LookupError)
    def _(find):
        expect_equal(find([4, 5, 6], 6), ("at", 2))

    @checker.case("not there", hint=HINTS[1], hint_for=(ValueError, IndexError))
    def _(find):
        expect_equal(find([4, 5, 6], 7), None)

    return checker


def finds(items, item):
    return ("at", items.index(item)) if item in items else None


def looks_up(items, item):
    return {4: ("at", 0)}[item]


def asks_index(items, item):
    return "at", items.index(item)


HELPED = {
    "another value": (lambda items, item: ("at", 1) if item in items else None, HINTS[2]),
    "None for a value": (lambda items, item: None if item == 6 else ("at", 0), HINTS[2]),
    "a value for None": (lambda items, item: ("at", items.index(item) if item in items else -1), HINTS[1]),
    "an error that the case names": (looks_up, HINTS[2]),
    "an error that the other case names": (asks_index, HINTS[1]),
}
NOT_HELPED = {
    "another type": lambda items, item: "at",
    "another type inside": lambda items, item: ("at", None),
    "another error": lambda items, item: items + item,
    "too many arguments": lambda items: None,
    "too many arguments of a builtin": iter,
    "leaves the kernel": lambda items, item: sys.exit(1),
    "changes its input": lambda items, item: (items.append(item), finds(items, item))[1],
    "never returns": for_ever,
    "cannot be used": lambda items, item: object(),
}


@pytest.mark.parametrize("label", HELPED)
def test_a_hint_stands_where_it_can_help(find, label):
    function, hint = HELPED[label]
    assert f"      hint: {hint}" in find.verdict(function).lines


@pytest.mark.parametrize("label", NOT_HELPED)
def test_a_hint_of_the_case_does_not_stand_under_another_error(find, label):
    verdict = find.verdict(NOT_HELPED[label])
    assert not verdict.passed and "✗ case 'there'" in str(verdict)
    assert [hint for hint in HINTS if hint in str(verdict)] == []


def test_the_wrong_number_of_arguments_is_not_the_error_that_a_case_names():
    checker = Checker("1.1", "add")
    checker.case("adds", hint="Convert.", hint_for=TypeError)(lambda add: expect_equal(add("1", 2), 3))
    assert "hint: Convert." in str(checker.verdict(lambda a, b: a + b))
    verdict = str(checker.verdict(lambda a: a))
    assert "raised TypeError" in verdict and "hint: Convert." not in verdict


def test_where_none_is_an_answer_the_other_is_shown_and_no_return_is_missed(find):
    verdict = str(find.verdict(HELPED["None for a value"][0]))
    assert "the result is None, expected ('at', 2)" in verdict and "`return`" not in verdict


def test_where_none_is_an_answer_and_the_only_one_a_return_may_be_missing(find):
    lines = find.verdict(lambda items, item: None).lines
    assert "      hint: does every way through the function `return`?" in lines
    assert not [line for line in lines if HINTS[2] in line]


def test_a_case_of_its_own_judgement_keeps_its_hint():
    def case(one):
        assert one() == 1, "it is not one"

    verdict = Checker("1.1", "one", cases=(Case("one", case, "Count."),)).verdict(lambda: 2)
    assert verdict.lines[:2] == ("1.1  ✗ case 'one': it is not one", "      hint: Count.")


@pytest.mark.parametrize("checker", all_checkers().values(), ids=lambda checker: checker.exercise)
def test_no_hint_of_a_lesson_stands_under_a_wrong_number_of_arguments(checker):
    verdict = str(checker.verdict(lambda: None))
    assert "raised TypeError" in verdict or type(checker) is not Checker  # a kernel's has a line of its own
    assert [case.hint for case in checker.cases if case.hint and case.hint in verdict] == []


def test_a_failing_case_on_small_inputs_says_the_inputs(find):
    call = "; the call was `find([4, 5, 6], 6)`"
    for function in (HELPED["another value"][0], *NOT_HELPED.values()):
        assert find.verdict(function).lines[0].endswith(call)
    assert "the call was" not in str(find.verdict(finds))


def test_the_inputs_are_those_before_the_call(find):
    line = find.verdict(lambda items, item: items.clear()).lines[0]
    assert "changed its input: `items` has 0 items" in line and "`find([4, 5, 6], 6)`" in line


def test_a_message_that_names_the_call_does_not_say_it_twice():
    checker = Checker("1.1", "one")
    checker.case("two")(lambda one: expect_equal(one(2), 1, "one(0x2)"))
    assert checker.verdict(lambda x: x).lines[0].endswith("one(0x2) is 2, expected 1")


def test_an_attribute_of_an_input_is_an_input():
    checker = Checker("1.1", "read")

    @checker.case("reads")
    def _(read):
        read(types.SimpleNamespace(counts=torch.zeros(2)))

    assert checker.verdict(lambda record: record.counts.sum()).passed
    verdict = checker.verdict(lambda record: record.counts.add_(1))
    assert "changed its input: `record`.counts: 2 of 2 values differ" in str(verdict)


def test_the_line_that_raised_is_quoted(double):
    def divide(values):
        return values / len([])

    assert "`return values / len([])`" not in str(double.verdict(right))
    assert "at the line `return [][values.numel()]`" in str(double.verdict(index_nothing))
    assert double.verdict(divide).attempted


def index_nothing(values):
    return [][values.numel()]


def test_a_result_that_the_case_cannot_use_is_the_learners(double):
    checker = Checker("1.1", "names")
    checker.case("two names")(lambda names: expect_equal(names()["a"], 1))
    verdict = checker.verdict(lambda: [1, 2])
    assert "returned a list of 2 items, which the checker could not use (TypeError" in str(verdict)


def test_what_the_function_prints_is_shown_once(double, capsys):
    def chatty(values):
        print("values of", values.numel())
        return values * 2

    verdict = double.verdict(chatty)
    assert capsys.readouterr().out == ""
    assert [line for line in verdict.lines if "printed" in line] == ["      printed: values of 1"]


def test_long_prints_are_cut(double):
    def chatty(values):
        print(*range(100), sep="\n")
        return values * 2

    assert double.verdict(chatty).lines[-1] == "      printed: ... 94 more lines"


def test_reports_are_the_same_every_time_and_carry_no_addresses(double):
    def confused(values):
        print(object())
        raise ValueError(f"what is {object()}?")

    reports = [str(double.verdict(confused)) for _ in range(2)]
    assert reports[0] == reports[1]
    assert not re.search(r"0x[0-9a-f]{4}", reports[0])
    assert "Traceback" not in reports[0]


def test_the_time_limit_holds_outside_the_main_thread_and_leaves_no_thread(double):
    found = []
    threads = threading.active_count()

    def loop(values):
        while True:
            values = values

    worker = threading.Thread(target=lambda: found.append(double.verdict(loop)))
    worker.start()
    worker.join(30)
    assert "did not return" in str(found[0])
    give_up = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < give_up:
        time.sleep(0.05)
    assert threading.active_count() == threads


def test_arguments_that_may_change_are_left_out():
    def fill(target, source):
        target.copy_(source)

    def case(fill):
        target = torch.zeros(2)
        fill(target, torch.ones(2))
        expect_equal(target, torch.ones(2))

    cases = (Case("fills", case),)
    assert not Checker("1.1", "fill", cases=cases).verdict(fill).passed
    assert Checker("1.1", "fill", cases=cases, may_change=(0,)).verdict(fill).passed
    assert Checker("1.1", "fill", cases=cases, may_change=("target",)).verdict(fill).passed
    assert not Checker("1.1", "fill", cases=cases, may_change=("source",)).verdict(fill).passed


@pytest.mark.parametrize(
    "change",
    [
        lambda names: names["list"].append(1),
        lambda names: names.pop("list"),
        lambda names: names["tensor"].fill_(float("nan")),
        lambda names: names["tensor"].__setitem__(0, -0.0),
    ],
    ids=["nested list", "a key", "a tensor", "the sign of a zero"],
)
def test_nested_inputs_are_compared_deeply(change):
    checker = Checker("1.1", "read")
    checker.case("nested")(lambda read: read({"list": [], "tensor": torch.zeros(2)}))
    assert checker.verdict(lambda names: None).passed
    verdict = checker.verdict(lambda names: (change(names), None)[1])
    assert "changed its input: `names`" in str(verdict)


def test_a_generator_is_watched_while_it_is_consumed():
    checker = Checker("1.1", "walk")
    checker.case("all of it")(lambda walk: expect_equal(list(walk([1, 2])), [1, 2]))

    def walks(items):
        yield from items

    def empties(items):
        while items:
            yield items.pop(0)

    def breaks(items):
        yield items[0]
        raise RuntimeError("lost the way")

    assert checker.verdict(walks).passed
    assert "changed its input: `items`" in str(checker.verdict(empties))
    assert "raised RuntimeError: lost the way" in str(checker.verdict(breaks))


def test_costs_wait_until_every_case_holds():
    checker, calls = Checker("1.1", "one"), []
    checker.case("one")(lambda one: expect_equal(one(), 1))
    checker.cost("counted")(lambda one: calls.append(1))
    assert not checker.verdict(lambda: 2).passed and not calls
    assert checker.verdict(lambda: 1).passed and calls == [1]


def test_mistakes_in_a_checker_are_errors():
    with pytest.raises(ValueError, match="no cases"):
        Checker("1.1", "one").verdict(right)
    checker = Checker("1.1", "one")
    checker.case("same")(lambda one: True)
    with pytest.raises(ValueError, match="two cases are called 'same'"):
        checker.case("same")(lambda one: None)
    with pytest.raises(TypeError, match="returned True"):
        checker.verdict(right)


def test_expect_raises_wants_the_error_and_its_words():
    def refuse(value):
        raise ValueError(f"{value} is too large")

    expect_raises(refuse, ValueError, 12, mentions=("12", "large"))
    with pytest.raises(Mismatch, match="does not mention"):
        expect_raises(refuse, ValueError, 12, mentions=("limit",))
    with pytest.raises(Mismatch, match="returned 3, expected a KeyError"):
        expect_raises(lambda: 3, KeyError)


def test_assert_rejects_names_what_slips_through(double):
    assert_rejects(double, {label: WRONG[label][0] for label in ("a constant", "raises", "wrong values")})
    with pytest.raises(AssertionError, match="'fine'"):
        assert_rejects(double, {"fine": right})
    with pytest.raises(AssertionError, match="'unwritten'"):
        assert_rejects(double, {"unwritten": stub})
    with pytest.raises(AssertionError, match="no wrong answers"):
        assert_rejects(double, {})


def test_checkers_are_found_in_their_order_and_ids_are_unique():
    module = types.ModuleType("lesson")
    module.second, module.first = Checker("1.2", "b"), Checker("1.1", "a")
    assert [checker.exercise for checker in checkers_in(module)] == ["1.2", "1.1"]
    lessons = all_checkers()
    assert lessons and all(exercise == checker.exercise for exercise, checker in lessons.items())


def packages_own(written_in: str, dressed_as: str):
    """A function whose code stands in one module and whose `__module__` names another."""
    scope = {"__name__": written_in}
    exec("def double(values):\n    return values * 2", scope)
    scope["double"].__module__ = dressed_as
    return scope["double"]


def test_the_packages_own_function_is_no_answer(double, monkeypatch, capsys):
    kept = []
    monkeypatch.setattr(journal, "remember", kept.append)
    own = packages_own("gptoss_lab.weights.compare", "gptoss_lab.weights.compare")
    assert double(own) is None
    assert capsys.readouterr().out == (
        "10.1  that is the package's `double`: run your own cell above first, then this one.\n"
    )
    assert not double.last.passed and not double.last.attempted and kept == []
    assert double.verdict(own).passed


@pytest.mark.parametrize(
    ("written_in", "dressed_as"),
    [
        ("__main__", "__main__"),
        ("__main__", "gptoss_lab.weights.compare"),  # functools.wraps around the package's function
        ("gptoss_lab_of_mine", "gptoss_lab_of_mine"),
    ],
)
def test_a_learners_function_is_checked(double, monkeypatch, capsys, written_in, dressed_as):
    kept = []
    monkeypatch.setattr(journal, "remember", kept.append)
    double(packages_own(written_in, dressed_as))
    assert "✓ 3 cases" in capsys.readouterr().out and kept == ["10.1"]


def test_what_is_no_function_is_told_so_and_not_taken_for_the_packages(double, capsys):
    double(3)
    assert "pass the function `double` itself, not 3" in capsys.readouterr().out
