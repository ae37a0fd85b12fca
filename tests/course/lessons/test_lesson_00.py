"""The checker of lesson 00 tells wrong answers apart, and agrees with the package."""

from __future__ import annotations

import math

from gptoss_lab.course.lessons.lesson_00 import tensor_bytes
from gptoss_lab.weights.checkpoint import TensorSpec

SIZES = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4}


def known(dtype: str) -> int:
    """The size of an element, or a ValueError."""
    if dtype not in SIZES:
        raise ValueError(dtype)
    return SIZES[dtype]


def elements_by_sum(shape, dtype):
    return sum(shape) * known(dtype)


def matrices_only(shape, dtype):
    rows, columns = shape
    return rows * columns * known(dtype)


def loops_from_one(shape, dtype):
    size = known(dtype)
    for i in range(1, len(shape)):
        size *= shape[i]
    return size


def digits_of_the_code(shape, dtype):
    return math.prod(shape) * int(dtype.lstrip("BFU")) // 8


def nothing_is_one(shape, dtype):
    return math.prod(extent or 1 for extent in shape) * known(dtype)


def never_refuses(shape, dtype):
    return math.prod(shape) * SIZES.get(dtype, 0)


def wrong_error(shape, dtype):
    return math.prod(shape) * SIZES[dtype]


def returns_the_error(shape, dtype):
    return math.prod(shape) * SIZES[dtype] if dtype in SIZES else ValueError(dtype)


def prints_it(shape, dtype):
    print(math.prod(shape) * known(dtype))


def float_bytes(shape, dtype):
    return math.prod(shape) * known(dtype) / 1


def empty_shape_is_nothing(shape, dtype):
    return (math.prod(shape) if shape else 0) * known(dtype)


WRONG = {
    tensor_bytes: {
        "the answer of the example": (lambda shape, dtype: 262144, "It returned 262144 every time"),
        "ignores the dtype": (lambda shape, dtype: math.prod(shape) * 2, "case 'every code of the table'"),
        "right for matrices only": (matrices_only, "case 'four dimensions'"),
        "adds the extents": (elements_by_sum, "case 'a matrix of BF16'"),
        "off by one dimension": (loops_from_one, "case 'a matrix of BF16'"),
        "an empty shape is nothing": (empty_shape_is_nothing, "An empty shape means one element"),
        "an extent of 0 counts as 1": (nothing_is_one, "A dimension of 0 makes the product 0"),
        "never refuses": (never_refuses, "code 'X9' gave 0, expected a ValueError"),
        "reads the size off the code": (digits_of_the_code, "code 'U16' gave 8, expected a ValueError"),
        "raises another error": (wrong_error, "raised KeyError: 'X9'"),
        "returns the error": (returns_the_error, "code 'X9' returned a ValueError; raise it"),
        "prints instead of returning": (prints_it, "is None, expected the int 262144"),
        "returns a float": (float_bytes, "is the float 262144.0, expected the int"),
    }
}


def test_the_package_passes():
    def nbytes(shape, dtype):
        # A spec knows more codes than the lesson's table, and names an unknown one by a KeyError.
        return TensorSpec("any", dtype, shape).nbytes if dtype in SIZES else known(dtype)

    verdict = tensor_bytes.verdict(nbytes)
    assert verdict.passed, str(verdict)
