"""What a checker's report says of several attempts at once."""

from __future__ import annotations

from gptoss_lab.course.attempts import Attempt, constant_answer

MOST_PRINTED_LINES = 6


def count_of(attempts: list[Attempt], noun: str) -> str:
    """How many attempts, with the noun in its right form."""
    return f"{len(attempts)} {noun}{'' if len(attempts) == 1 else 's'}"


def labels(attempts: list[Attempt]) -> str:
    """The labels of the cases, in their order."""
    return "; ".join(attempt.label for attempt in attempts)


def pattern(attempts: list[Attempt], failed: list[Attempt], may_be_none: bool = False) -> str:
    """What the failures have in common: always the same answer, or right for one case only."""
    answer = constant_answer(attempts, may_be_none)
    if answer:
        return f"It returned {answer} every time: the answer has to depend on the input."
    right = [attempt for attempt in attempts if attempt not in failed]
    if len(right) == 1 and len(attempts) > 2:
        return f"Only '{right[0].label}' holds: is something in it right for that case alone?"
    return f"{len(right)} of {count_of(attempts, 'case')} hold." if right else "No case holds."


def printed_lines(attempts: list[Attempt]) -> list[str]:
    """What the function printed in the first of these attempts that printed, once."""
    lines = next((attempt.printed for attempt in attempts if attempt.printed), [])
    shown = [f"printed: {line}" for line in lines[:MOST_PRINTED_LINES]]
    return shown + ([f"printed: ... {len(lines) - len(shown)} more lines"] if len(lines) > len(shown) else [])
