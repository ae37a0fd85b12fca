"""The checker of the review in `90__on_your_own`. It gives no hints: what was seen is all that is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gptoss_lab.course.check import Checker, Mismatch
from gptoss_lab.course.lessons import ferry_90
from gptoss_lab.course.lessons.loader_90 import written

objection = Checker("90.5", "objection", done="The files make a good first test for whoever repairs it.", seconds=30.0)
KINDS = ("crash", "missing", "wrong", "memory", "slow")
FAULT = ("group, used = [], 0", "if is_last or used + sizes[i + 1] > limit:")
BLIND = ("file = write(", "load(parameters, [file], limit)")


def _review(learner: Callable, limit: int) -> dict[str, Any]:
    review = learner(limit)
    wanted = {"line": int, "test_line": int, "kind": str, "files": list, "tensor": str}
    if not isinstance(review, dict) or {key: type(value) for key, value in review.items()} != wanted:
        described = ", ".join(f"{key} ({kind.__name__})" for key, kind in wanted.items())
        raise Mismatch(f"the review is not a dict of {described}")
    sizes = [size for file in review["files"] for size in (file if isinstance(file, list) else [file])]
    if not sizes or not all(isinstance(f, list) and f for f in review["files"]):
        raise Mismatch("files is not a list of lists of sizes, one list of one or more for each file")
    if not all(type(size) is int and 0 < size <= limit for size in sizes):
        raise Mismatch(f"a size in files is not a whole number from 1 to the limit, {limit}: {sizes}")
    if sum(sizes) > 8 * limit:
        raise Mismatch(f"files hold {sum(sizes)} bytes: nobody needs more than eight times the limit")
    return review


def _expect_failure(learner: Callable, limit: int) -> None:
    review = _review(learner, limit)
    with written(*ferry_90.bytes_named(review["files"])) as files:
        if ferry_90.run(ferry_90.Before.load, files, limit):
            raise Mismatch(f"with a limit of {limit} the old code fails on these files as well")
        for _ in range(3):
            wrong = ferry_90.run(ferry_90.After.load, files, limit)
            if not wrong:
                raise Mismatch(f"with a limit of {limit} the new code loads these files right")
            if review["tensor"] not in wrong:
                raise Mismatch(f"with a limit of {limit} some tensor is wrong, and {review['tensor']!r} is not")


def _expect_line(number: int, accepted: tuple[str, ...], what: str) -> None:
    lines = ferry_90.diff()
    text = lines[number - 1] if 0 < number <= len(lines) else ""
    if not text.startswith("+") or text.startswith("+++"):
        raise Mismatch(f"{what} {number} is not a line that the pull request adds")
    if not text[1:].strip().startswith(accepted):
        raise Mismatch(f"{what} {number} stands up: `{text[1:].strip()}`")


@objection.case("a limit of 4096")
def _(objection):
    _expect_failure(objection, 4096)


@objection.case("a limit of 9999")
def _(objection):
    _expect_failure(objection, 9999)


@objection.case("a limit of 262144")
def _(objection):
    _expect_failure(objection, 262_144)


@objection.case("what goes wrong")
def _(objection):
    kind = _review(objection, 4096)["kind"]
    if kind not in KINDS:
        raise Mismatch(f"kind is {kind!r}, expected one of {', '.join(KINDS)}")
    if kind != "wrong":
        raise Mismatch(f"kind is {kind!r}, and that is not what a user of the new code would report")


@objection.case("the line")
def _(objection):
    _expect_line(_review(objection, 4096)["line"], FAULT, "line")


@objection.case("the line of the test")
def _(objection):
    _expect_line(_review(objection, 4096)["test_line"], BLIND, "test_line")


@objection.cost("small enough for a test")
def _(objection):
    files = _review(objection, 4096)["files"]
    if sum(map(len, files)) > 4:
        raise Mismatch(f"files name {sum(map(len, files))} tensors, and the fault shows with four or fewer")
