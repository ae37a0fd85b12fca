"""The checkers of lesson 22 tell wrong answers apart; the large file crosses requests as the lesson says."""

from __future__ import annotations

from collections import deque
from itertools import groupby, islice

import pytest
import torch

from gptoss_lab.course.lessons import racing_22
from gptoss_lab.course.lessons.lesson_22 import classify, settled
from gptoss_lab.course.lessons.settled_22 import settled as package_settled
from gptoss_lab.course.lessons.tearing_22 import classify as package_classify
from gptoss_lab.weights.plan import plan
from gptoss_lab.weights.streaming import stream

# --- 22.1


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def classifies(prepare=raw, tolerant=False, new_first=False, sample=1):
    """An answer that is right but for one of these."""

    def answer(view, old, new):
        now, was, will = (prepare(tensor)[::sample] for tensor in (view, old, new))
        known = [("old", was), ("new", will)]
        for name, other in reversed(known) if new_first else known:
            if torch.equal(now, other):
                return name
        if not tolerant and not ((now == was) | (now == will)).all():
            raise ValueError("neither")
        return "torn"

    return answer


def by_the_first_and_last_byte(view, old, new):
    now, was, will = map(raw, (view, old, new))
    if now[0] == was[0] and now[-1] == was[-1]:
        return "old"
    if now[0] == will[0] and now[-1] == will[-1]:
        return "new"
    return classifies()(view, old, new)


def by_majority(view, old, new):
    now, was, will = map(raw, (view, old, new))
    classifies()(view, old, new)
    return "old" if (now == was).sum() >= (now == will).sum() else "new"


def with_assert(view, old, new):
    try:
        return classifies()(view, old, new)
    except ValueError as error:
        raise AssertionError from error


def writes(view, old, new):
    answer = classifies()(view, old, new)
    view.zero_()
    return answer


CLASSIFY = {
    "a constant": (lambda view, old, new: "torn", "returned 'torn' every time"),
    "by values": (classifies(lambda t: t.reshape(-1)), "NaN is not equal to itself"),
    "any mixture is torn": (classifies(tolerant=True), "a third writer is another fault"),
    "new before old": (classifies(new_first=True), "case 'old and new are the same'"),
    "every second byte": (classifies(sample=2), "Look at every byte"),
    "ends only": (by_the_first_and_last_byte, "case 'one byte of many'"),
    "by majority": (by_majority, "case 'half and half'"),
    "an AssertionError": (with_assert, "raised AssertionError"),
    "writes to the view": (writes, "the function changed its input: `view`"),
    "booleans": (lambda view, old, new: torch.equal(view, old), "case 'still the old bytes'"),
    "no answer": (lambda view, old, new: None, "does every way through the function `return`?"),
}

# --- 22.2


def settles(size=len, keep=False, end=True, ahead=0):
    """An answer that is right but for one of these."""

    def answer(weights, layout):
        weights, mine = iter(weights), []
        waiting = deque()
        for request in layout.requests:
            waiting.extend(islice(weights, size(request) + ahead - len(waiting)))
            for _ in request:
                if not waiting:
                    return
                if keep:
                    mine.append(waiting[0])
                yield waiting.popleft()
        if end:
            yield from weights

    return answer


def unchanged(weights, layout):
    yield from weights


def all_at_once(weights, layout):
    yield from list(weights)


def backwards(weights, layout):
    weights = iter(weights)
    for request in layout.requests:
        yield from reversed(list(islice(weights, len(request))))
    yield from weights


def grouped(weights, layout):
    """`groupby` has to see the next request's first tensor to know that this one is over."""
    for _, request in groupby(weights, key=lambda item: layout.slot(item[0]).request):
        yield from list(request)


def one_late(weights, layout):
    """Asks for the next request before it hands out the last tensor of this one."""
    waiting = None
    for item in package_settled(weights, layout):
        if waiting is not None:
            yield waiting
        waiting = item
    if waiting is not None:
        yield waiting


def copies(weights, layout):
    yield from ((name, tensor.clone()) for name, tensor in weights)


def the_first_request_only(weights, layout):
    weights = iter(weights)
    yield from list(islice(weights, len(layout.requests[0]) if layout.requests else 0))
    yield from weights


SETTLED = {
    "the stream itself": (unchanged, "Take all tensors of a request before you yield its first"),
    "all at once": (all_at_once, "case"),
    "copies": (copies, "Take all tensors of a request before you yield its first"),
    "backwards": (backwards, "case"),
    "the first request only": (the_first_request_only, "case 'a late read finds the new bytes'"),
    "one too few": (settles(size=lambda request: len(request) - 1), "case"),
    "one ahead": (settles(ahead=1), "case"),
    "one late": (one_late, "case"),
    "never ends the stream": (settles(end=False), "Ask once more after the last request"),
    "keeps what it hands out": (settles(keep=True), "Let go of each pair as you yield it"),
    "a list": (lambda weights, layout: list(weights), "case"),
}

WRONG = {classify: CLASSIFY, settled: SETTLED}


@pytest.mark.parametrize(
    ("checker", "answer"),
    [(classify, package_classify), (classify, classifies()), (settled, package_settled), (settled, settles())],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)


# --- the large file, and the real streamer


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return racing_22.write_two_requests(tmp_path_factory.mktemp("racing"), mib=1)


def test_the_second_request_lies_exactly_over_the_first(path):
    layout = plan(path, racing_22.limit_of(path))
    assert [len(request) for request in layout.requests] == [8, 8]
    for view in range(racing_22.VIEWS):
        (over,) = layout.overwriters(f"{racing_22.OLD}.{view}")
        assert over.name == f"{racing_22.NEW}.{view}"


def test_crossing_makes_the_first_view_new_and_ends_with_all_new(path):
    old, weights = racing_22.cross(path)
    first = next(iter(old.values()))
    assert (first == racing_22.NEW).all()
    rest = list(weights)
    assert len(rest) == racing_22.VIEWS - 1
    assert all((view == racing_22.NEW).all() for view in old.values())


def test_the_samples_end_with_everything_overwritten(path):
    samples = racing_22.watch_overwriting(path, rounds=2)
    assert samples[-1][1] == [1.0] * racing_22.VIEWS
    assert all(shares[0] == 1.0 for _, shares in samples)  # `next()` waited for the first


def test_a_test_of_the_first_view_never_passes(path):
    assert not any(racing_22.passes(path, delay)[0] for delay in (0, 1) for _ in range(5))


def test_samples_with_a_torn_view_are_counted():
    assert racing_22.count_torn([(0.0, [1.0, 0.0]), (0.1, [1.0, 0.5]), (0.2, [0.2, 0.1]), (0.3, [1.0, 1.0])]) == 2


def test_settled_makes_one_outcome_of_a_late_read(path):
    layout = plan(path, racing_22.limit_of(path))
    for _ in range(5):
        weights = package_settled(stream(path, memory_limit=layout.memory_limit), layout)
        old = dict(islice(weights, racing_22.VIEWS))
        next(weights)
        assert all((view == racing_22.NEW).all() for view in old.values())
        assert len(list(weights)) == racing_22.VIEWS - 1
