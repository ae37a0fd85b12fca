"""The checkers of lesson 42 tell wrong answers apart, and its stages are the package's routing, launch for launch."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

from gptoss_lab.course.lessons import draw_42, stages_42
from gptoss_lab.course.lessons.lesson_42 import METADATA, TAIL, TWENTY, busy_share, by_origin, find_repeat
from gptoss_lab.moe.equivalence import assert_equivalent
from gptoss_lab.moe.launches import launches
from gptoss_lab.moe.routing import rebuild, topk


def chained(note):
    """An answer that runs the stages one after the other and keeps what `note(launches)` makes of each list."""

    def answer(stages, value):
        table = {}
        for name, stage in stages.items():
            table[name] = note(launches(partial(stage, value)))
            value = stage(value)
        return table

    return answer


right_by_origin = chained(list)


def all_get_the_first_value(stages, value):
    return {name: launches(partial(stage, value)) for name, stage in stages.items()}


def drops_the_empty(stages, value):
    return {name: found for name, found in right_by_origin(stages, value).items() if found}


def sorted_by_name(stages, value):
    return dict(sorted(right_by_origin(stages, value).items()))


def from_the_start(stages, value):
    whole = right_by_origin(stages, value)
    return {name: sum(list(whole.values())[: i + 1], []) for i, name in enumerate(whole)}


def pairs(stages, value):
    return list(right_by_origin(stages, value).items())


def one_flat_list(stages, value):
    return sum(right_by_origin(stages, value).values(), [])


def needs_a_stage(stages, value):
    next(iter(stages))
    return right_by_origin(stages, value)


def empties_the_stages(stages, value):
    table = right_by_origin(stages, value)
    stages.clear()
    return table


BY_ORIGIN = {
    "a constant": (lambda stages, value: {"double": ["aten.mul"]}, "every time"),
    "the first value for all": (all_get_the_first_value, "case 'a stage takes what the last one returned'"),
    "numbers for lists": (chained(len), "is the int 1, expected a list"),
    "a set": (chained(lambda found: sorted(set(found))), "case 'the same call in two stages'"),
    "a count": (chained(lambda found: list(Counter(found).elements())), "case 'the same call in two stages'"),
    "drops the empty": (drops_the_empty, "A view launches nothing. Its stage has an empty list."),
    "sorted by name": (sorted_by_name, "the order of the stages[0] is 'add', expected 'cast'"),
    "from the start": (from_the_start, "case 'a stage takes what the last one returned'"),
    "pairs": (pairs, "is a list of 1 items, expected a dict"),
    "one flat list": (one_flat_list, "expected a dict of 1 items"),
    "fails on nothing": (needs_a_stage, "case 'no stages': `by_origin` raised StopIteration"),
    "empties the stages": (empties_the_stages, "the function changed its input: `stages`"),
}


def longest(overlap=False, at_least=1, order=lambda run: (-run[2], run[0], run[1])):
    """An answer that lists every repeated run and takes the first in `order`."""

    def answer(names):
        runs = [
            (first, second, length)
            for first in range(len(names))
            for second in range(first + 1, len(names))
            for length in range(at_least, len(names) - second + 1)
            if names[first : first + length] == names[second : second + length]
            and (overlap or first + length <= second)
        ]
        return min(runs, key=order, default=None)

    return answer


def next_to_each_other(names):
    runs = [
        (i, i + n, n)
        for n in range(len(names) // 2, 0, -1)
        for i in range(len(names) - 2 * n + 1)
        if names[i : i + n] == names[i + n : i + 2 * n]
    ]
    return runs[0] if runs else None


def by_counts(names):
    twice = [name for name, count in Counter(names).items() if count > 1]
    if not twice:
        return None
    first = names.index(twice[0])
    return first, names.index(twice[0], first + 1), len(twice)


def not_to_the_end(names):
    return longest()([*names[:-1], object()]) if names else None


def from_one(names):
    run = longest()(names)
    return run and (run[0] + 1, run[1] + 1, run[2])


def pops(names):
    run = longest()(list(names))
    names.clear()
    return run


FIND_REPEAT = {
    "a constant": (lambda names: (1, 4, 2), "It returned (1, 4, 2) every time"),
    "may overlap": (longest(overlap=True), "case 'one name, over and over'"),
    "the first repeat": (longest(order=lambda run: (run[0], -run[2], run[1])), "case 'the longest comes last'"),
    "the last of equals": (
        longest(order=lambda run: (-run[2], -run[0], run[1])),
        "failing: runs that would overlap; two runs of one length",
    ),
    "the last second run": (longest(order=lambda run: (-run[2], run[0], -run[1])), "also failing: three times"),
    "the shortest": (longest(order=lambda run: (run[2], run[0], run[1])), "case 'a run of two'"),
    "next to each other": (next_to_each_other, "case 'a run of two'"),
    "by counts": (by_counts, "case 'one name, over and over'"),
    "never to the end": (not_to_the_end, "case 'at both ends'"),
    "counts from 1": (from_one, "is 2, expected 1"),
    "nothing for None": (lambda names: longest()(names) or (0, 0, 0), "case 'nothing twice'"),
    "a list": (lambda names: list(longest()(names) or []) or None, "is a list of 3 items, expected a tuple"),
    "empties the list": (pops, "the function changed its input: `names`"),
}


def span(timeline):
    return max(x.started_us + x.lasted_us for x in timeline) - min(x.launched_us for x in timeline)


def zero_or(share):
    return lambda timeline: share(timeline) if timeline else 0.0


def covered(timeline, merge=lambda end, stop: max(end, stop)):
    busy, end = 0.0, float("-inf")
    for launch in sorted(timeline, key=lambda launch: launch.started_us):
        stop = launch.started_us + launch.lasted_us
        busy += max(0.0, stop - max(launch.started_us, end))
        end = merge(end, stop)
    return busy


def summed(timeline):
    return sum(launch.lasted_us for launch in timeline)


def in_list_order(timeline):
    end = timeline[-1].started_us + timeline[-1].lasted_us
    return covered(timeline) / (end - timeline[0].launched_us)


def from_the_first_start(timeline):
    first = min(launch.started_us for launch in timeline)
    return covered(timeline) / (max(x.started_us + x.lasted_us for x in timeline) - first)


def from_zero(timeline):
    return covered(timeline) / max(x.started_us + x.lasted_us for x in timeline)


BUSY_SHARE = {
    "a constant": (lambda timeline: 0.25, "It returned 0.25 every time"),
    "the sum of the durations": (zero_or(lambda t: summed(t) / span(t)), "case 'two at the same time'"),
    "at most 1": (zero_or(lambda t: min(1.0, summed(t) / span(t))), "case 'two at the same time'"),
    "from the first start": (zero_or(from_the_first_start), "The clock starts when the host asks"),
    "from zero": (zero_or(from_zero), "case 'a clock that does not start at 0'"),
    "the last of the list": (zero_or(in_list_order), "case 'not in the order of starting'"),
    "forgets what still runs": (
        zero_or(lambda t: covered(t, merge=lambda end, stop: stop) / span(t)),
        "case 'one inside another'",
    ),
    "the idle share": (zero_or(lambda t: 1 - covered(t) / span(t)), "the share is 0.75, expected 0.25"),
    "per cent": (zero_or(lambda t: 100 * covered(t) / span(t)), "the share is 25, expected 0.25"),
    "microseconds": (zero_or(covered), "the share is 2, expected 0.25"),
    "fails on nothing": (lambda t: covered(t) / span(t), "case 'no kernels': `busy_share` raised ValueError"),
    "a tensor": (zero_or(lambda t: torch.tensor(covered(t) / span(t))), "a tensor of float32"),
}
WRONG = {by_origin: BY_ORIGIN, find_repeat: FIND_REPEAT, busy_share: BUSY_SHARE}


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (by_origin, stages_42.by_origin),
        (find_repeat, stages_42.find_repeat),
        (busy_share, stages_42.busy_share),
        (by_origin, right_by_origin),
        (find_repeat, longest()),
        (busy_share, zero_or(lambda t: covered(t) / span(t))),
    ],
    ids=["by_origin", "find_repeat", "busy_share", "chained", "longest", "covered"],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, verdict


def test_the_stages_are_rebuild_launch_for_launch():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits = torch.randn((3, 32), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).to(device)
    stages = stages_42.cut_routing(4, 32)
    table = stages_42.by_origin(stages, logits)
    assert sum(table.values(), []) == TWENTY == launches(lambda: rebuild(topk(logits, 4), 32))
    assert [len(found) for found in table.values()] == [5, 1, 6, 4, 2, 2]
    assert stages_42.find_repeat(TWENTY) == (1, 12, len(METADATA))

    value, short = logits, logits
    for name, stage in stages.items():
        value = stage(value)
        if name in ("topk", "ragged metadata", "gate_scal"):
            short = stage(short)
    assert_equivalent(value, rebuild(topk(logits, 4), 32))
    assert_equivalent(short, value)


RECORD = Path(__file__).resolve().parents[3] / "data" / "h200"


def recorded():
    record = draw_42.read_record(RECORD)
    if record is None:
        pytest.skip("data/h200/routing.json is not recorded")
    return record


@pytest.mark.parametrize(("way", "names"), [("rebuild", TWENTY), ("reuse", ["_topk_forward", *METADATA, *TAIL])])
def test_the_record_has_the_launches_that_the_lesson_counts(way, names):
    for experts in (32, 128):
        run = draw_42.recorded_timeline(recorded(), 1, experts, way)
        assert [launch.name for launch in run] == names
        assert 0 < stages_42.busy_share(run) < 1


def test_a_timeline_that_was_not_recorded_is_named():
    with pytest.raises(KeyError, match="no timeline of rebuild for 7 x 32"):
        draw_42.recorded_timeline(recorded(), 7, 32, "rebuild")


def test_without_a_record_a_line_says_how_to_take_it(tmp_path, capsys):
    assert draw_42.read_record(tmp_path) is None
    assert draw_42.device_time(tmp_path, {"topk": ["_topk_forward"]}, [32]) == {}
    assert draw_42.RECORD_IT in capsys.readouterr().out


def test_a_record_of_other_launches_is_refused():
    recorded()
    with pytest.raises(ValueError, match="other launches in 'topk'"):
        draw_42.device_time(RECORD, {"topk": ["aten.zeros"]}, [32])
