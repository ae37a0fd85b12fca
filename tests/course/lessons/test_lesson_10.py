"""The checkers of lesson 10 tell wrong answers apart, and agree with `gptoss_lab.weights.compare`."""

from __future__ import annotations

import pytest
import torch

from gptoss_lab.course.lessons.lesson_10 import differing, source_of
from gptoss_lab.weights import compare


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def differing_by(same):
    """An answer that is right but for how it tells whether two tensors are the same."""

    def answer(expected, actual):
        names = expected.keys() | actual.keys()
        both = expected.keys() & actual.keys()
        return sorted(n for n in names if n not in both or not same(expected[n], actual[n]))

    return answer


def same_form(a, b):
    return a.dtype == b.dtype and a.shape == b.shape


def one_side(expected, actual):
    return [n for n in compare.differing(expected, actual) if n in expected]


def from_two_lists(expected, actual):
    wrong = set(compare.differing(expected, actual))
    return [n for n in [*expected, *actual] if n in wrong]


def unsorted(expected, actual):
    wrong = compare.differing(expected, actual)
    return [n for n in dict.fromkeys([*expected, *actual]) if n in wrong]


def pops(expected, actual):
    wrong = sorted(expected.keys() ^ actual.keys())
    for name in list(expected):
        if name in actual and not compare.same_bytes(expected.pop(name), actual[name]):
            wrong.append(name)
    return sorted(wrong)


def fills_nan(expected, actual):
    for tensor in (*expected.values(), *actual.values()):
        if tensor.is_floating_point():
            tensor.nan_to_num_()
    return compare.differing(expected, actual)


def writes_nothing_down(expected, actual):
    compare.differing(expected, actual)


def flat_in_storage(a, b):
    return same_form(a, b) and bytes(a.untyped_storage()) == bytes(b.untyped_storage())


DIFFERING = {
    "a constant": (lambda expected, actual: [], "It returned [] every time"),
    "compares values": (differing_by(lambda a, b: same_form(a, b) and torch.equal(a, b)), "NaN == NaN is False"),
    "NaN equals NaN, and so do zeros": (
        differing_by(lambda a, b: same_form(a, b) and bool(((a == b) | (a.isnan() & b.isnan())).all())),
        "0.0 == -0.0 is True",
    ),
    "with a tolerance": (
        differing_by(lambda a, b: same_form(a, b) and torch.allclose(a.float(), b.float(), equal_nan=True)),
        "No tolerance: the last bit counts",
    ),
    "compares addresses": (differing_by(lambda a, b: a.data_ptr() == b.data_ptr()), "case 'nothing differs'"),
    "the first bytes only": (
        differing_by(lambda a, b: same_form(a, b) and raw(a)[:16] == raw(b)[:16]),
        "case 'one byte in the middle, two swapped'",
    ),
    "sums the bytes": (
        differing_by(lambda a, b: same_form(a, b) and sum(raw(a)) == sum(raw(b))),
        "Compare every byte in its place",
    ),
    "ignores the dtype": (
        differing_by(lambda a, b: a.shape == b.shape and raw(a) == raw(b)),
        "Compare the dtypes before the bytes",
    ),
    "ignores the shape": (
        differing_by(lambda a, b: a.dtype == b.dtype and raw(a) == raw(b)),
        "Compare the shapes before the bytes",
    ),
    "cannot view a strided tensor": (
        differing_by(lambda a, b: same_form(a, b) and torch.equal(a.view(torch.uint8), b.view(torch.uint8))),
        "case 'strides, scalars, views'",
    ),
    "cannot view every second element": (
        differing_by(lambda a, b: same_form(a, b) and torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (a, b)))),
        "Make a tensor contiguous and flat before you view it as bytes",
    ),
    "compares the whole storage": (differing_by(flat_in_storage), "case 'strides, scalars, views'"),
    "NumPy knows no BF16": (
        differing_by(lambda a, b: same_form(a, b) and a.numpy().tobytes() == b.numpy().tobytes()),
        "raised TypeError: Got unsupported ScalarType BFloat16",
    ),
    "the names of one side": (one_side, "case 'a name that only one side has'"),
    "in the order of the dicts": (unsorted, "case 'all differ, sorted by name'"),
    "names twice, unsorted": (from_two_lists, "has 4 items, expected 2"),
    "a set": (lambda expected, actual: set(compare.differing(expected, actual)), "expected a list of 0 items"),
    "changes the dict": (pops, "the function changed its input: `expected` lacks"),
    "changes a tensor": (fills_nan, "the function changed its input: `expected`['router.bias']"),
    "returns nothing": (writes_nothing_down, "does every way through the function `return`?"),
}


def source_by(find, probed=lambda wrong, probe: raw(wrong)[:probe]):
    """An answer that is right but for how it looks for the bytes, or which bytes it takes."""

    def answer(wrong, originals, probe=32):
        needle = probed(wrong, probe)
        for name, tensor in originals.items():
            offset = find(raw(tensor), needle)
            if offset is not None:
                return name, offset
        return None

    return answer


def found(haystack, needle):
    offset = haystack.find(needle)
    return None if offset < 0 else offset


def every_fourth(haystack, needle):
    return next((i for i in range(0, len(haystack), 4) if haystack[i : i + len(needle)] == needle), None)


def all_but_the_last_place(haystack, needle):
    """The range of a search that ends one too early, and starts one too late."""
    places = range(1, len(haystack) - len(needle))
    return next((i for i in places if haystack[i : i + len(needle)] == needle), None)


def all_but_the_last(haystack, needle):
    places = range(len(haystack) - len(needle))
    return next((i for i in places if haystack[i : i + len(needle)] == needle), None)


def no_probe(wrong, originals):
    return compare.source_of(wrong, originals)


def last_owner(wrong, originals, probe=32):
    return compare.source_of(wrong, dict(reversed(originals.items())), probe)


def by_address(wrong, originals, probe=32):
    for name, tensor in originals.items():
        offset = wrong.data_ptr() - tensor.data_ptr()
        if 0 <= offset < tensor.nbytes:
            return name, offset
    return None


def in_elements(wrong, originals, probe=32):
    source = compare.source_of(wrong, originals, probe)
    return source and (source[0], source[1] // originals[source[0]].element_size())


def forgets_the_offset(wrong, originals, probe=32):
    source = compare.source_of(wrong, originals, probe)
    return source[0] if source else None


def unfolds(wrong, originals, probe=32):
    needle = torch.frombuffer(bytearray(raw(wrong)[:probe]), dtype=torch.uint8)
    for name, tensor in originals.items():
        windows = tensor.contiguous().reshape(-1).view(torch.uint8).unfold(0, len(needle), 1)  # [places, bytes]
        hits = (windows == needle).all(dim=1).nonzero()
        if len(hits):
            return name, int(hits[0])
    return None


def raises_in_the_end(wrong, originals, probe=32):
    source = compare.source_of(wrong, originals, probe)
    if source is None:
        raise LookupError("nobody has these bytes")
    return source


SOURCE_OF = {
    "a constant": (lambda wrong, originals, probe=32: ("norm", 0), "It returned ('norm', 0) every time"),
    "an offset of 0 is no find": (source_by(lambda h, n: found(h, n) or None), "An offset of 0 is a find too"),
    "at the start only": (source_by(lambda h, n: 0 if h.startswith(n) else None), "case 'from the middle'"),
    "off by one at both ends": (source_by(all_but_the_last_place), "case 'the bytes of another tensor"),
    "off by one at the end": (source_by(all_but_the_last), "The last possible offset is len - probe."),
    "elements, not bytes": (source_by(every_fourth), "Search bytes, not elements"),
    "the offset in elements": (in_elements, "case 'from the middle'"),
    "all bytes, not the probe": (source_by(found, lambda wrong, probe: raw(wrong)), "Compare the first `probe` bytes"),
    "a probe of elements": (
        source_by(found, lambda wrong, probe: raw(wrong.reshape(-1)[:probe])),
        "Compare the first `probe` bytes alone",
    ),
    "ignores the probe": (source_by(found, lambda wrong, probe: raw(wrong)[:32]), "case 'a shorter probe'"),
    "does not take a probe": (no_probe, "raised TypeError"),
    "gives up on a short tensor": (
        source_by(found, lambda wrong, probe: raw(wrong)[:probe].ljust(probe, b"\0")),
        "case 'a tensor shorter than the probe'",
    ),
    "fails on a short owner": (unfolds, "raised RuntimeError"),
    "compares addresses": (by_address, "case 'at an odd offset'"),
    "the last owner": (last_owner, "case 'two owners, two offsets: the first of each'"),
    "the name alone": (forgets_the_offset, "is the str 'norm', expected a tuple of 2 items"),
    "raises in place of None": (raises_in_the_end, "case 'nobody's bytes'"),
    "nothing": (lambda wrong, originals, probe=32: None, "It returned None every time"),
    "an offset of 0 for None": (
        lambda wrong, originals, probe=32: compare.source_of(wrong, originals, probe) or ("sinks", 0),
        "expected None",
    ),
    "-1 in place of None": (source_by(lambda h, n: h.find(n)), "It returned ('sinks', -1) every time"),
}
WRONG = {differing: DIFFERING, source_of: SOURCE_OF}


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (differing, compare.differing),
        (source_of, compare.source_of),
        (differing, differing_by(lambda a, b: same_form(a, b) and raw(a) == raw(b))),
        (source_of, source_by(found)),
    ],
    ids=["differing of the package", "source_of of the package", "differing_by", "source_by"],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)
