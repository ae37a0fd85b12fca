"""The checkers of lesson 40 tell wrong answers apart, and the package's own functions pass."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gptoss_lab.course.lessons.lesson_40 import count_rows, read_bits, schedule_blocks, sort_slots
from gptoss_lab.moe import by_hand


def counting(minlength=True, negative="left out", dtype=np.int32):
    """The solution with parts to leave out."""

    def answer(ids, n_experts):
        picks = ids.reshape(-1)
        if negative == "left out":
            picks = picks[picks >= 0]
        elif negative == "clipped":
            picks = picks.clip(0)
        elif negative == "wrapped":
            picks = picks % n_experts
        return np.bincount(picks, minlength=n_experts if minlength else 0).astype(dtype)

    return answer


def by_unique(ids, n_experts):
    return np.unique(ids[ids >= 0], return_counts=True)[1].astype(np.int32)


def tokens_not_slots(ids, n_experts):
    return np.bincount(ids[:, 0][ids[:, 0] >= 0], minlength=n_experts).astype(np.int32)


def in_a_dict(ids, n_experts):
    found = Counter(ids[ids >= 0].tolist())
    return {expert: found[expert] for expert in range(n_experts)}


def always_32(ids, n_experts):
    return np.bincount(ids[ids >= 0], minlength=32).astype(np.int32)


def marks_as_last(ids, n_experts):
    counts = np.zeros(n_experts, dtype=np.int32)
    for expert in ids.reshape(-1):
        counts[expert] += 1
    return counts


def adds_once(ids, n_experts):
    counts = np.zeros(n_experts, dtype=np.int32)
    counts[ids[ids >= 0]] += 1  # of equal indices one counts
    return counts


def overwrites_the_marks(ids, n_experts):
    answer = by_hand.count_rows(ids, n_experts)
    ids[ids < 0] = 0
    return answer


COUNT_ROWS = {
    "a constant": (lambda ids, n_experts: np.array([1, 2, 0, 1], dtype=np.int32), "It returned"),
    "up to the largest id": (counting(minlength=False), "The result has n_experts entries, also for zeros"),
    "-1 is not left out": (counting(negative="kept"), "Leave negative ids out before you count"),
    "-1 is expert 0": (counting(negative="clipped"), "case '-1 is no pick'"),
    "-1 is the last expert": (counting(negative="wrapped"), "case '-1 is no pick'"),
    "-1 is the last index": (marks_as_last, "Leave negative ids out before you count"),
    "int64": (counting(dtype=np.int64), "dtype int64, expected int32"),
    "only those picked": (by_unique, "case 'two tokens, two picks': the result has shape [3], expected [4]"),
    "the first pick only": (tokens_not_slots, "case 'two tokens, two picks'"),
    "a dict": (in_a_dict, "expected an array"),
    "always 32": (always_32, "has shape [32], expected [4]"),
    "equal indices count once": (adds_once, "case 'two tokens, two picks'"),
    "overwrites -1": (overwrites_the_marks, "the function changed its input: `ids`"),
}


def sorting(kind="stable", inverse="right", dtype=np.int32, order="by expert"):
    """The solution with parts to change."""

    def answer(ids):
        flat = ids.reshape(-1) if order != "by column" else ids.T.reshape(-1)
        col_sorted = np.argsort(flat if order != "falling" else -flat, kind=kind).astype(dtype)
        if inverse == "the same":
            return col_sorted, col_sorted.copy()
        row_sorted = np.argsort(col_sorted).astype(dtype)
        return (row_sorted, col_sorted) if inverse == "exchanged" else (col_sorted, row_sorted)

    return answer


def last_of_equals_first(ids):
    flat = ids.reshape(-1)
    col_sorted = (len(flat) - 1 - np.argsort(flat[::-1], kind="stable")).astype(np.int32)
    return col_sorted, np.argsort(col_sorted).astype(np.int32)


def the_ids_themselves(ids):
    col_sorted, row_sorted = by_hand.sort_slots(ids)
    return ids.reshape(-1)[col_sorted], row_sorted


def tokens_instead_of_slots(ids):
    col_sorted, row_sorted = by_hand.sort_slots(ids)
    return col_sorted // max(ids.shape[1], 1), row_sorted


def sorts_in_place(ids):
    answer = by_hand.sort_slots(ids)
    ids.sort(axis=1)
    return answer


SORT_SLOTS = {
    "the identity": (lambda ids: (np.arange(ids.size, dtype=np.int32),) * 2, "case 'two tokens, two picks'"),
    "not stable": (last_of_equals_first, "case 'two tokens, two picks'"),
    "the default sort": (sorting(kind="quicksort"), 'Ask for a stable sort: kind="stable"'),
    "its own inverse": (sorting(inverse="the same"), "inverse[order] = arange(n), not inverse = order"),
    "exchanged": (sorting(inverse="exchanged"), "case 'an order that is not its own inverse'"),
    "int64": (sorting(dtype=np.int64), "dtype int64, expected int32"),
    "falling": (sorting(order="falling"), "case 'two tokens, two picks'"),
    "by column": (sorting(order="by column"), "Slot 2 is the first pick of token 1"),
    "ids, not slots": (the_ids_themselves, "case 'two tokens, two picks'"),
    "tokens, not slots": (tokens_instead_of_slots, "case 'two tokens, two picks'"),
    "one of the two": (lambda ids: by_hand.sort_slots(ids)[0], "expected a tuple"),
    "a list": (lambda ids: list(by_hand.sort_slots(ids)), "expected a tuple"),
    "sorts its input": (sorts_in_place, "the function changed its input: `ids`"),
}


def scheduling(rounding="up", order="by expert", packing="block first", fill=-1, least=0, dtype=np.int32):
    """The solution with parts to change."""

    def answer(sizes, block_size, length):
        entries = []
        for expert, size in enumerate(sizes.tolist()):
            blocks = {"up": -(-size // block_size), "down": size // block_size, "one more": size // block_size + 1}
            for block in range(max(least, blocks[rounding])):
                entries.append((block, expert))
        if order == "by block":
            entries.sort()
        packed = [b << 16 | e if packing == "block first" else e << 16 | b for b, e in entries][:length]
        schedule = np.full(length, fill, dtype=dtype)
        schedule[: len(packed)] = packed
        return schedule

    return answer


def always_16(sizes, block_size, length):
    return by_hand.schedule_blocks(sizes, 16, length)


def not_filled_up(sizes, block_size, length):
    schedule = by_hand.schedule_blocks(sizes, block_size, length)
    return schedule[schedule >= 0]


def rows_not_blocks(sizes, block_size, length):
    schedule = by_hand.schedule_blocks(sizes, block_size, length)
    return np.where(schedule < 0, -1, (schedule >> 16) * block_size << 16 | schedule & 0xFFFF).astype(np.int32)


def experts_alone(sizes, block_size, length):
    schedule = by_hand.schedule_blocks(sizes, block_size, length)
    return np.where(schedule < 0, -1, schedule & 0xFFFF).astype(np.int32)


def numbers_the_busy_ones(sizes, block_size, length):
    return by_hand.schedule_blocks(sizes[sizes > 0], block_size, length)


SCHEDULE_BLOCKS = {
    "nothing to do": (lambda sizes, size, length: np.full(length, -1, dtype=np.int32), "case 'one block each'"),
    "rounded down": (scheduling(rounding="down"), "case 'one block each'"),
    "a block too many": (scheduling(rounding="one more"), "No rows, no block"),
    "a block for each expert": (scheduling(least=1), "No rows, no block"),
    "by block": (scheduling(order="by block"), "All blocks of an expert come before those of the next one"),
    "expert first": (scheduling(packing="expert first"), "case 'one block each'"),
    "filled with 0": (scheduling(fill=0), "case 'one block each'"),
    "int64": (scheduling(dtype=np.int64), "dtype int64, expected int32"),
    "always blocks of 16": (always_16, "`schedule_blocks` raised ValueError"),
    "not filled up": (not_filled_up, "has shape [2], expected [4]"),
    "rows, not blocks": (rows_not_blocks, "16 rows are one block of 16, 17 are two"),
    "experts alone": (experts_alone, "case 'a full block, and one row more'"),
    "experts renumbered": (numbers_the_busy_ones, "case 'an expert without rows'"),
}


def reading(words_used="all", bit="low first", limit=True, shift="python"):
    """The solution with parts to change."""

    def answer(words, n_experts):
        lines = []
        for row in words:
            found = []
            for e in range(n_experts if limit else 32 * words.shape[1]):
                word = int(row[e // 32] if words_used == "all" else row[0])
                if shift == "signed" and word >= 1 << 31:
                    word = 0  # what `word & (1 << bit) > 0` makes of a sign bit, and all below it
                place = e % 32 if bit == "low first" else 31 - e % 32
                if word >> place & 1:
                    found.append(e)
            lines.append(found)
        return lines

    return answer


def skips_empty_tokens(words, n_experts):
    return [line for line in by_hand.read_bits(words, n_experts) if line]


def as_an_array(words, n_experts):
    return np.array(by_hand.read_bits(words, n_experts))


def one_list(words, n_experts):
    return [expert for line in by_hand.read_bits(words, n_experts) for expert in line]


READ_BITS = {
    "nothing": (lambda words, n_experts: [[] for _ in words], "case 'one word'"),
    "the first word only": (reading(words_used="first"), "Expert 40 is bit 8 of word 1"),
    "the highest bit first": (reading(bit="high first"), "case 'one word'"),
    "padding too": (reading(limit=False), "Only experts below n_experts count"),
    "a sign bit": (reading(shift="signed"), "Turn the word into a Python int before you shift"),
    "falling": (lambda words, n: [line[::-1] for line in by_hand.read_bits(words, n)], "case 'one word'"),
    "skips tokens without picks": (skips_empty_tokens, "case 'a token without picks'"),
    "one list for all": (one_list, "case 'one word'"),
    "counts": (lambda words, n: [len(line) for line in by_hand.read_bits(words, n)], "case 'one word'"),
    "tuples": (lambda words, n: [tuple(line) for line in by_hand.read_bits(words, n)], "expected a list"),
    "an array": (as_an_array, "case 'one word'"),
    "empties the words": (lambda words, n: (by_hand.read_bits(words, n), words.fill(0))[0], "changed its input"),
}
WRONG = {count_rows: COUNT_ROWS, sort_slots: SORT_SLOTS, schedule_blocks: SCHEDULE_BLOCKS, read_bits: READ_BITS}


def by_sorting_pairs(ids):
    pairs = sorted((expert, slot) for slot, expert in enumerate(ids.reshape(-1).tolist()))
    col_sorted = np.array([slot for _, slot in pairs], dtype=np.int32)
    return col_sorted, np.argsort(col_sorted).astype(np.int32)


def by_unpacking(words, n_experts):
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")[:, :n_experts]
    return [np.flatnonzero(row).tolist() for row in bits]


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (count_rows, by_hand.count_rows),
        (sort_slots, by_hand.sort_slots),
        (schedule_blocks, by_hand.schedule_blocks),
        (read_bits, by_hand.read_bits),
        (count_rows, counting()),
        (sort_slots, sorting()),
        (sort_slots, by_sorting_pairs),
        (schedule_blocks, scheduling()),
        (read_bits, reading()),
        (read_bits, by_unpacking),
    ],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, verdict
