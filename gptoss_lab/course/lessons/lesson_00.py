"""The checker of `00__start_here`."""

from __future__ import annotations

from gptoss_lab.course.check import Checker, Mismatch, expect_equal
from gptoss_lab.course.describe import show

tensor_bytes = Checker("0.1", "tensor_bytes", done="It gives the size of every tensor in this course.")


@tensor_bytes.case("a matrix of BF16")
def _(tensor_bytes):
    expect_equal(tensor_bytes((2048, 64), "BF16"), 2048 * 64 * 2)


@tensor_bytes.case("every code of the table", hint="Two codes have 2 bytes, one has 1, one has 4.")
def _(tensor_bytes):
    for code, size in (("U8", 1), ("F16", 2), ("BF16", 2), ("F32", 4)):
        expect_equal(tensor_bytes((3, 5), code), 15 * size, f"the bytes of (3, 5) in {code}")


@tensor_bytes.case("four dimensions")
def _(tensor_bytes):
    expect_equal(tensor_bytes((32, 128, 2, 16), "U8"), 32 * 128 * 2 * 16)


@tensor_bytes.case("a scalar", hint="An empty shape means one element.", hint_for=(TypeError, IndexError, ValueError))
def _(tensor_bytes):
    expect_equal(tensor_bytes((), "F32"), 4)


@tensor_bytes.case("an empty tensor", hint="A dimension of 0 makes the product 0.")
def _(tensor_bytes):
    expect_equal(tensor_bytes((4, 0, 3), "BF16"), 0)


@tensor_bytes.case(
    "a code that does not exist", hint="Raise ValueError for a code that is not in the table.", hint_for=Exception
)
def _(tensor_bytes):
    for code in ("X9", "U16", "bf16"):
        try:
            answer = tensor_bytes((2, 2), code)
        except ValueError:
            continue
        if isinstance(answer, ValueError):
            raise Mismatch(f"code {code!r} returned a ValueError; raise it", "`raise ValueError(...)`, not `return`.")
        raise Mismatch(f"code {code!r} gave {show(answer)}, expected a ValueError")
