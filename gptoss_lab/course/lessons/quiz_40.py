"""The questions at the end of `40__routing_by_hand`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "Why does the schedule have a fixed length?",
                {
                    "Every expert has the same number of blocks.": "An expert gets as many as its rows need. One "
                    "without rows gets none.",
                    "The host launches the kernel before it can know the ids.": "The ids are on the device. The "
                    "host launches for the worst case, and a program that finds -1 has nothing to do.",
                    "The kernels need room to write the blocks they have finished.": "A kernel reads the schedule. "
                    "Nobody writes to it after it was made.",
                },
                "The host launches the kernel before it can know the ids.",
            ),
            quiz.Question(
                "Expert 5 has 33 rows, and a block has 16. What does the schedule hold for it?",
                {
                    "`0 << 16 | 5`, `1 << 16 | 5`": "Two blocks hold 32 rows. The last one needs a third block.",
                    "`5 << 16 | 0`, `5 << 16 | 1`, `5 << 16 | 2`": "The two numbers are exchanged. The block stands "
                    "in the upper half.",
                    "`1 << 16 | 5`, `2 << 16 | 5`, `3 << 16 | 5`": "Blocks are counted from 0.",
                    "`0 << 16 | 5`, `1 << 16 | 5`, `2 << 16 | 5`": "Three blocks. The last one has one row.",
                },
                "`0 << 16 | 5`, `1 << 16 | 5`, `2 << 16 | 5`",
            ),
            quiz.Question(
                "Which of these can be computed from the bitmatrix alone?",
                {
                    "the counts and the schedules": "Both follow from how many tokens picked each expert, and that "
                    "is a column of bits.",
                    "the slot at each row": "The bits do not say which of its picks an expert was. That takes the "
                    "ids, too.",
                    "the weight of each row": "A bit says that an expert was picked, and not how much.",
                    "none of the lists, because the order of the picks is lost": "The order is lost, but counting "
                    "does not need it.",
                },
                "the counts and the schedules",
            ),
        ]
    )
