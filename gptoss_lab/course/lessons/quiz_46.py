"""The questions at the end of `46__what_parity_misses`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "You plant a fault in the shared tail, and your parity test stays green. What is the test worth?",
                {
                    "nothing: a test that misses a planted fault can go": "It still fails on a difference before "
                    "the join, which is what it is for.",
                    "as much as before: if both paths agree, it was no fault": "Both carry the same fault. To agree "
                    "is not to be right.",
                    "a part: it still compares all that lies before the join": "It is blind to the tail alone. That "
                    "needs another test, independent of it.",
                },
                "a part: it still compares all that lies before the join",
            ),
            quiz.Question(
                "A colleague writes the reference by copying the fast code and leaving out the kernels. What is it "
                "worth?",
                {
                    "little: what was misunderstood about the layout is copied, too": "Write a reference from the "
                    "definition, by other means, best by somebody else.",
                    "much: a reference should be as close to the code as it can be": "The closer it is, the more "
                    "faults the two share.",
                    "much: without kernels it cannot have the same faults": "It cannot have those of the kernels. A "
                    "layout that was misunderstood is in both.",
                    "nothing: a reference has to be written in NumPy": "The library does not matter. What matters "
                    "is what it shares with the code.",
                },
                "little: what was misunderstood about the layout is copied, too",
            ),
            quiz.Question(
                "The comparison of exercise 46.3 says that a holder differs from itself, because one field is a "
                "function. What do you do?",
                {
                    "count a function as equal to itself": "Then the field passes for ever, whatever it holds.",
                    "leave the field out by name, with a reason": "Or call the function, and compare what it "
                    "returns. Either way somebody has looked at the field.",
                    "compare functions by their names": "The name is the same in every routing. What the function "
                    "returns need not be.",
                    "skip the test if a field cannot be compared": "A skipped test stops nobody. Not to know must "
                    "not count as equal.",
                },
                "leave the field out by name, with a reason",
            ),
        ]
    )
