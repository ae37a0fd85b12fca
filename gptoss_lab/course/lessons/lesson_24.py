"""The checkers of `24__object_storage`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gptoss_lab.course.check import Checker, Mismatch, expect_equal, expect_raises
from gptoss_lab.course.describe import show
from gptoss_lab.weights.plan import Slot

choose_files = Checker("24.1", "choose_files", done="Nothing is streamed that the index does not name.")

PREFIX = "s3://models/capitals/"


def _index(*files: str) -> dict:
    """An index in which each file holds two tensors."""
    return {
        "metadata": {"total_size": 8 * len(files)},
        "weight_map": {f"layer.{at}.{part}": file for at, file in enumerate(files) for part in ("bias", "weight")},
    }


def _names(count: int, of: int | None = None) -> list[str]:
    return [f"model-{at:05}-of-{of or count:05}.safetensors" for at in range(1, count + 1)]


def _uris(*names: str, prefix: str = PREFIX) -> list[str]:
    return [prefix + name for name in names]


def _expect_sorted(actual: object, expected: list[str], what: str = "the result") -> None:
    """As `expect_equal`; what is right but for its order, or comes more than once, is told so."""
    if isinstance(actual, list) and actual != expected and sorted(map(str, set(actual))) == sorted(expected):
        if len(actual) > len(expected):
            raise Mismatch(f"{what} holds what is expected, some of it more than once: {show(actual)}", "Each once.")
        raise Mismatch(f"{what} holds what is expected, but is not sorted: {show(actual)}")
    expect_equal(actual, expected, what)


@choose_files.case("three files, all named")
def _(choose_files):
    _expect_sorted(choose_files(_uris(*_names(3)), _index(*_names(3))), _uris(*_names(3)))


@choose_files.case("an older upload beside it", hint="Keep the addresses whose last part is among the index's files.")
def _(choose_files):
    listed = sorted(_uris(*_names(3), *_names(4)))
    _expect_sorted(choose_files(listed, _index(*_names(3))), _uris(*_names(3)))
    _expect_sorted(choose_files(listed, _index(*_names(4))), _uris(*_names(4)))


@choose_files.case("a stale file that sorts before the others", hint="No place in the list is safe: ask the index.")
def _(choose_files):
    _expect_sorted(choose_files(_uris("adapter.safetensors", *_names(2)), _index(*_names(2))), _uris(*_names(2)))


@choose_files.case("listed in another order", hint="Return them sorted, so that each load reads in the same order.")
def _(choose_files):
    _expect_sorted(choose_files(_uris(*_names(3))[::-1], _index(*_names(3)[::-1])), _uris(*_names(3)))


@choose_files.case("another bucket and a deeper prefix", hint="Compare the part behind the last `/`, and no other.")
def _(choose_files):
    prefix = "s3://other/a/model-00001-of-00002.safetensors/v2/"
    listed = _uris("model.safetensors", *_names(2), prefix=prefix)
    _expect_sorted(choose_files(listed, _index(*_names(2))), _uris(*_names(2), prefix=prefix))


@choose_files.case("names that end alike", hint="`endswith` takes `old-model.safetensors` for `model.safetensors`.")
def _(choose_files):
    listed = _uris("model.safetensors", "old-model.safetensors")
    _expect_sorted(choose_files(listed, _index("model.safetensors")), _uris("model.safetensors"))


@choose_files.case("a file is missing", hint="Compare the other way too: what the index names must be listed.")
def _(choose_files):
    first, second, third = _names(3)
    expect_raises(choose_files, ValueError, _uris(first, third), _index(first, second, third), mentions=(second,))


@choose_files.case("nothing is listed")
def _(choose_files):
    expect_raises(choose_files, ValueError, [], _index(*_names(1)), mentions=tuple(_names(1)))


@choose_files.case("an index that names no file", hint="There is an index, and it chooses none of them: return `[]`.")
def _(choose_files):
    _expect_sorted(choose_files(_uris("model.safetensors"), {"weight_map": {}}), [])


@choose_files.case("no index, one file", hint="A model of one file needs no index.")
def _(choose_files):
    _expect_sorted(choose_files(_uris("model.safetensors"), None), _uris("model.safetensors"))


@choose_files.case("no index, several files", hint="This is how the stale file got in: raise ValueError.")
def _(choose_files):
    expect_raises(choose_files, ValueError, _uris(*_names(3)), None)


@choose_files.case("no index, no file", hint="None is not one: raise ValueError, or a load ends with nothing loaded.")
def _(choose_files):
    expect_raises(choose_files, ValueError, [], None)


lost_names = Checker("24.2", "lost_names", done="It holds for any number of ranks and rounds.")


def _rounds(*rounds: Sequence[Sequence[int]]) -> list[list[list[Slot]]]:
    """Rounds from sizes: for each round and rank the sizes of its tensors, named by round, rank and number."""
    return [[list(_batch(at, rank, sizes)) for rank, sizes in enumerate(row)] for at, row in enumerate(rounds)]


def _batch(at: int, rank: int, sizes: Sequence[int]) -> Iterator[Slot]:
    stop = 0
    for number, size in enumerate(sizes):
        stop += size
        yield Slot(f"{at}.{rank}.{number}", at, stop - size, stop)


def _lost(lost_names: Callable, rounds: list[list[list[Slot]]], *expected: list[str]) -> None:
    """Ask for each rank in turn."""
    for rank, names in enumerate(expected):
        _expect_sorted(lost_names(rounds, rank), names, f"lost on rank {rank}")


@lost_names.case("two ranks, one round", hint="A rank's own tensors lie in another buffer than those it receives.")
def _(lost_names):
    _lost(lost_names, _rounds([[4, 4], [8]]), [], [])


@lost_names.case(
    "three ranks, one round", hint="A rank receives the others' batches in their order, all from offset 0."
)
def _(lost_names):
    _lost(lost_names, _rounds([[8], [8], [8]]), ["0.1.0"], ["0.0.0"], ["0.0.0"])


@lost_names.case("a short batch after a long one", hint="Compare intervals: what lies behind its end is spared.")
def _(lost_names):
    _lost(lost_names, _rounds([[2], [2, 2, 2], [3]]), ["0.1.0", "0.1.1"], ["0.0.0"], ["0.0.0"])


@lost_names.case("touching is not overlapping", hint="Intervals are [start, stop): 4 is not a byte of [0, 4).")
def _(lost_names):
    _lost(lost_names, _rounds([[1], [4, 4], [4]]), ["0.1.0"], ["0.0.0"], ["0.0.0"])


@lost_names.case("four ranks", hint="Any later batch in the same buffer counts, not only the next.")
def _(lost_names):
    rounds = _rounds([[8], [2, 6], [2], [6]])
    first, third = ["0.1.0", "0.1.1", "0.2.0"], ["0.0.0", "0.1.0", "0.1.1"]
    _lost(lost_names, rounds, first, ["0.0.0", "0.2.0"], third, ["0.0.0", "0.1.0"])


@lost_names.case("two ranks, two rounds", hint="The next round fills the rank's own buffer again, too.")
def _(lost_names):
    _lost(lost_names, _rounds([[8], [8]], [[8], [8]]), ["0.0.0", "0.1.0"], ["0.0.0", "0.1.0"])


@lost_names.case("a rank that has nothing left to send", hint="An empty batch overwrites nothing.")
def _(lost_names):
    rounds = _rounds([[4, 4], [8]], [[6], []])
    _lost(lost_names, rounds, ["0.0.0", "0.0.1"], ["0.0.0", "0.0.1"])


@lost_names.case("spared by the next round, hit by a later one")
def _(lost_names):
    rounds = _rounds([[2, 6], [8]], [[2], [1]], [[5], []])
    _lost(lost_names, rounds, ["0.0.0", "0.0.1", "0.1.0", "1.0.0"], ["0.0.0", "0.0.1", "0.1.0", "1.0.0"])


@lost_names.case("nothing is streamed")
def _(lost_names):
    _lost(lost_names, [], [], [])


@lost_names.case("the answer is sorted, each name once")
def _(lost_names):
    rounds = [
        [[], [Slot("b", 0, 0, 4), Slot("a", 0, 4, 8)], [Slot("d", 0, 0, 8)]],
        [[Slot("c", 1, 0, 8)], [Slot("e", 1, 0, 8)], []],
    ]
    _expect_sorted(lost_names(rounds, 0), ["a", "b", "d"], "lost on rank 0")
