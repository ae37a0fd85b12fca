"""The checkers of `10__every_answer_is_bang`."""

from __future__ import annotations

import torch

from gptoss_lab.course.check import Checker, Mismatch, expect_equal

NAN = float("nan")

differing = Checker("10.1", "differing", done="It compares bytes, so NaN and signed zeros do not fool it.")


def _weights() -> dict[str, torch.Tensor]:
    """Four small tensors, with fresh memory at every call."""
    return {
        "norm.weight": torch.ones(8, dtype=torch.bfloat16),
        "experts.blocks": torch.arange(240, dtype=torch.uint8).reshape(2, 3, 40),
        "router.bias": torch.tensor([0.0, -1.5, NAN, 4.0]),
        "attention.sinks": torch.linspace(-1, 1, 6, dtype=torch.bfloat16),
    }


@differing.case("nothing differs")
def _(differing):
    names = differing(_weights(), _weights())
    if isinstance(names, list) and names == ["router.bias"]:  # the one with a NaN
        raise Mismatch(f"the result is {names}, expected []", "NaN == NaN is False. Compare bytes, not values.")
    expect_equal(names, [])


@differing.case("one byte in the middle, two swapped", hint="Compare every byte in its place, not a sum of them.")
def _(differing):
    actual = _weights()
    actual["experts.blocks"][1, 1, 3] += 1
    actual["router.bias"] = actual["router.bias"][[1, 0, 2, 3]]
    expect_equal(differing(_weights(), actual), ["experts.blocks", "router.bias"])


@differing.case("a tiny change", hint="No tolerance: the last bit counts.")
def _(differing):
    actual = _weights()
    actual["router.bias"][3] = torch.nextafter(torch.tensor(4.0), torch.tensor(5.0))
    expect_equal(differing(_weights(), actual), ["router.bias"])


@differing.case("the sign of a zero", hint="0.0 == -0.0 is True. Their bytes differ.")
def _(differing):
    actual = _weights()
    actual["router.bias"][0] = -0.0
    expect_equal(differing(_weights(), actual), ["router.bias"])


@differing.case(
    "another dtype, equal values or equal bytes", hint="Compare the dtypes before the bytes.", hint_for=RuntimeError
)
def _(differing):
    actual = _weights()
    actual["norm.weight"] = actual["norm.weight"].float()
    actual["attention.sinks"] = actual["attention.sinks"].view(torch.int16)
    names = differing(_weights(), actual)
    # Their order has a case of its own, further down.
    expect_equal(sorted(names) if isinstance(names, list) else names, ["attention.sinks", "norm.weight"])


@differing.case("the same bytes in another shape", hint="Compare the shapes before the bytes.", hint_for=RuntimeError)
def _(differing):
    actual = _weights()
    actual["experts.blocks"] = actual["experts.blocks"].reshape(3, 2, 40)
    expect_equal(differing(_weights(), actual), ["experts.blocks"])


@differing.case("all differ, sorted by name")
def _(differing):
    actual = {name: torch.full_like(tensor, 7) for name, tensor in _weights().items()}
    expect_equal(differing(_weights(), actual), sorted(actual))


@differing.case(
    "a name that only one side has", hint="Take the names of both: expected.keys() | actual.keys().", hint_for=KeyError
)
def _(differing):
    actual = _weights()
    del actual["attention.sinks"]
    actual["stray.bias"] = torch.zeros(2)
    expect_equal(differing(_weights(), actual), ["attention.sinks", "stray.bias"])


@differing.case(
    "strides, scalars, views",
    hint="Make a tensor contiguous and flat before you view it as bytes.",
    hint_for=RuntimeError,
)
def _(differing):
    values = torch.arange(6.0)
    expected = {
        "strided": values.reshape(2, 3).t(),
        "every second": values[::2],
        "scalar": torch.tensor(1.0),
        "empty": torch.zeros(0),
        "view": values[2:5],
    }
    actual = {name: tensor.contiguous().clone() for name, tensor in expected.items()}
    actual["scalar"] += 1
    expect_equal(differing(expected, actual), ["scalar"])


source_of = Checker("10.2", "source_of", may_be_none=True, done="It finds the owner of any run of bytes.")


def _originals() -> dict[str, torch.Tensor]:
    """Four tensors whose bytes do not repeat, in three dtypes; one is short, one has two dimensions."""
    numbers = torch.Generator().manual_seed(10)
    raw = torch.randint(0, 256, (4, 96), dtype=torch.uint8, generator=numbers)  # [tensors, bytes]
    return {
        "sinks": raw[3, :4].clone().view(torch.bfloat16),
        "blocks": raw[0].clone().reshape(4, 24),
        "norm": raw[1].clone().view(torch.bfloat16),
        "bias": raw[2].clone().view(torch.float32),
    }


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@source_of.case("the bytes of another tensor, from its start")
def _(source_of):
    originals = _originals()
    found = source_of(_bytes(originals["norm"])[:64].view(torch.float32), originals)
    if found is None:
        raise Mismatch("the result is None, expected ('norm', 0)", "An offset of 0 is a find too.")
    expect_equal(found, ("norm", 0))


@source_of.case("from the middle")
def _(source_of):
    originals = _originals()
    wrong = _bytes(originals["bias"])[40:80].view(torch.bfloat16).reshape(4, 5)
    expect_equal(source_of(wrong, originals), ("bias", 40))


@source_of.case("at an odd offset", hint="Search bytes, not elements: a tensor may start anywhere in another.")
def _(source_of):
    originals = _originals()
    wrong = _bytes(originals["norm"])[13:53].clone().view(torch.bfloat16)
    expect_equal(source_of(wrong, originals), ("norm", 13))


@source_of.case("the last bytes of a tensor", hint="The last possible offset is len - probe.")
def _(source_of):
    originals = _originals()
    wrong = _bytes(originals["norm"])[64:].clone().view(torch.bfloat16)
    expect_equal(source_of(wrong, originals), ("norm", 64))


@source_of.case(
    "only the start is known", hint="Compare the first `probe` bytes alone: the rest may come from elsewhere."
)
def _(source_of):
    originals = _originals()
    wrong = torch.cat([_bytes(originals["bias"])[8:40], _bytes(originals["blocks"])[:32]])
    expect_equal(source_of(wrong.view(torch.bfloat16), originals), ("bias", 8))


@source_of.case("a shorter probe", hint="`probe` counts bytes, not elements.")
def _(source_of):
    originals = _originals()
    wrong = torch.cat([_bytes(originals["blocks"])[20:28], torch.zeros(24, dtype=torch.uint8)])
    expect_equal(source_of(wrong.view(torch.float32), originals, probe=8), ("blocks", 20))


@source_of.case("a tensor shorter than the probe")
def _(source_of):
    originals = _originals()
    wrong = _bytes(originals["norm"])[30:42].clone().view(torch.float32)
    expect_equal(source_of(wrong, originals), ("norm", 30))


@source_of.case("nobody's bytes", hint="Return None if no tensor contains them.", hint_for=(LookupError, ValueError))
def _(source_of):
    expect_equal(source_of(torch.zeros(16), _originals()), None)


@source_of.case("two owners, two offsets: the first of each", hint="The first in the dict, at its first offset.")
def _(source_of):
    originals = _originals()
    owner = _bytes(originals.pop("blocks"))
    twice = torch.cat([owner, owner])  # the same bytes at two offsets
    originals |= {"twice": twice, "copy": owner.clone()}
    expect_equal(source_of(owner[4:60], originals), ("twice", 4))
