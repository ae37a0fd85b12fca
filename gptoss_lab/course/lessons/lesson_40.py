"""The checkers of `40__routing_by_hand`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gptoss_lab.course.check import Checker, expect_equal
from gptoss_lab.moe import by_hand


def _random_ids(tokens: int, k: int, n_experts: int, seed: int) -> np.ndarray:
    """Distinct ids in each row, int16 [tokens, k]."""
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(n_experts)[:k] for _ in range(tokens)]).astype(np.int16)


def _same_as(expected: Callable, *arguments: object) -> Callable[[Callable], None]:
    return lambda learner: expect_equal(learner(*arguments), expected(*arguments))


count_rows = Checker("40.1", "count_rows", done="It is triton_kernels' `col_sum`.")


@count_rows.case("two tokens, two picks")
def _(count_rows):
    expect_equal(count_rows(np.array([[1, 0], [1, 3]]), 4), np.array([1, 2, 0, 1], dtype=np.int32))


@count_rows.case("experts at the end that nobody picked", hint="The result has n_experts entries, also for zeros.")
def _(count_rows):
    expect_equal(count_rows(np.array([[0], [0]]), 5), np.array([2, 0, 0, 0, 0], dtype=np.int32))


@count_rows.case("-1 is no pick", hint="Leave negative ids out before you count.", hint_for=(ValueError, IndexError))
def _(count_rows):
    expect_equal(count_rows(np.array([[2, -1], [-1, -1]]), 3), np.array([0, 0, 1], dtype=np.int32))


@count_rows.case("no tokens")
def _(count_rows):
    expect_equal(count_rows(np.zeros((0, 4), dtype=np.int16), 3), np.zeros(3, dtype=np.int32))


count_rows.case("33 tokens, 32 experts")(_same_as(by_hand.count_rows, _random_ids(33, 4, 32, 0), 32))
count_rows.case("33 tokens, 24 experts")(_same_as(by_hand.count_rows, _random_ids(33, 8, 24, 1), 24))

sort_slots = Checker("40.2", "sort_slots", done="There and back: `row_sorted` undoes `col_sorted`.")


@sort_slots.case("two tokens, two picks", hint="Slot 2 is the first pick of token 1.")
def _(sort_slots):
    expected = (np.array([1, 0, 2, 3], dtype=np.int32), np.array([1, 0, 2, 3], dtype=np.int32))
    expect_equal(sort_slots(np.array([[1, 0], [1, 3]])), expected)


@sort_slots.case("an order that is not its own inverse", hint="inverse[order] = arange(n), not inverse = order.")
def _(sort_slots):
    expected = (np.array([2, 0, 1], dtype=np.int32), np.array([1, 2, 0], dtype=np.int32))
    expect_equal(sort_slots(np.array([[5], [7], [2]])), expected)


@sort_slots.case("one token")
def _(sort_slots):
    expected = (np.array([3, 1, 0, 2], dtype=np.int32), np.array([2, 1, 3, 0], dtype=np.int32))
    expect_equal(sort_slots(np.array([[9, 4, 11, 0]])), expected)


@sort_slots.case("no tokens")
def _(sort_slots):
    nothing = np.zeros(0, dtype=np.int32)
    expect_equal(sort_slots(np.zeros((0, 4), dtype=np.int16)), (nothing, nothing))


sort_slots.case("many equal ids", hint='Ask for a stable sort: kind="stable".')(
    _same_as(by_hand.sort_slots, (np.arange(200) % 3).reshape(50, 4).astype(np.int16))
)
sort_slots.case("33 tokens, 128 experts")(_same_as(by_hand.sort_slots, _random_ids(33, 4, 128, 2)))

schedule_blocks = Checker("40.3", "schedule_blocks", done="It is a line of `block_schedule_data`.")


@schedule_blocks.case("one block each")
def _(schedule_blocks):
    expect_equal(schedule_blocks(np.array([3, 1]), 16, 4), np.array([0, 1, -1, -1], dtype=np.int32))


@schedule_blocks.case("an expert without rows", hint="No rows, no block.")
def _(schedule_blocks):
    expect_equal(schedule_blocks(np.array([0, 2, 0, 5]), 16, 3), np.array([1, 3, -1], dtype=np.int32))


@schedule_blocks.case("a full block, and one row more", hint="16 rows are one block of 16, 17 are two.")
def _(schedule_blocks):
    expected = np.array([0, 1, 1 << 16 | 1, -1], dtype=np.int32)
    expect_equal(schedule_blocks(np.array([16, 17]), 16, 4), expected)


@schedule_blocks.case("several blocks each", hint="All blocks of an expert come before those of the next one.")
def _(schedule_blocks):
    expected = np.array([0, 1 << 16, 2 << 16, 1, 1 << 16 | 1, -1], dtype=np.int32)
    expect_equal(schedule_blocks(np.array([40, 20]), 16, 6), expected)


@schedule_blocks.case("another block size")
def _(schedule_blocks):
    expected = np.array([2, 1 << 16 | 2, 2 << 16 | 2], dtype=np.int32)
    expect_equal(schedule_blocks(np.array([0, 0, 70]), 32, 3), expected)


@schedule_blocks.case("nothing to schedule")
def _(schedule_blocks):
    expect_equal(schedule_blocks(np.array([0, 0]), 16, 2), np.array([-1, -1], dtype=np.int32))


schedule_blocks.case("300 rows, 9 experts")(
    _same_as(by_hand.schedule_blocks, by_hand.count_rows(_random_ids(75, 4, 9, 3), 9), 16, 60)
)

read_bits = Checker("40.4", "read_bits", done="Bits and ids say the same.")


@read_bits.case("one word")
def _(read_bits):
    expect_equal(read_bits(np.array([[0b1010], [0b1]], dtype=np.uint32), 32), [[1, 3], [0]])


@read_bits.case(
    "the highest bit", hint="Turn the word into a Python int before you shift.", hint_for=(OverflowError, TypeError)
)
def _(read_bits):
    expect_equal(read_bits(np.array([[1 << 31 | 1]], dtype=np.uint32), 32), [[0, 31]])


@read_bits.case("two words a token", hint="Expert 40 is bit 8 of word 1.")
def _(read_bits):
    expect_equal(read_bits(np.array([[1, 1 << 8], [0, 1 << 31]], dtype=np.uint32), 64), [[0, 40], [63]])


@read_bits.case("padding behind the last expert", hint="Only experts below n_experts count.")
def _(read_bits):
    expect_equal(read_bits(np.array([[1 << 23 | 1 << 30]], dtype=np.uint32), 24), [[23]])


@read_bits.case("a token without picks")
def _(read_bits):
    expect_equal(read_bits(np.zeros((2, 1), dtype=np.uint32), 32), [[], []])


@read_bits.case("no tokens")
def _(read_bits):
    expect_equal(read_bits(np.zeros((0, 2), dtype=np.uint32), 64), [])
