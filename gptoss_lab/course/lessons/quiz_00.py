"""The questions at the end of `00__start_here`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "A tensor of gpt-oss's experts has dtype `U8` and shape `(32, 5760, 90, 16)`. How many FP4 values "
                "does it hold?",
                {
                    "265,420,800": "That is its number of bytes. A byte of `U8` holds two packed FP4 values.",
                    "530,841,600": "Two in every byte: 32 experts × 5760 rows × 2880 columns.",
                    "132,710,400": "This halves the bytes. It is the other way round: two values share one byte.",
                    "the header does not say": "It does: the product of the shape is the bytes, and each holds two.",
                },
                "530,841,600",
            ),
            quiz.Question(
                "You leave an exercise out, so its function still raises `NotImplementedError`. What happens when "
                "you run all cells?",
                {
                    "The run stops at the exercise cell.": "The cell only defines the function. A stub raises when "
                    "it is called.",
                    "The run stops at the checker, which calls the function.": "The checker calls it and catches "
                    "the error. It says that the exercise was not attempted yet.",
                    "The lesson runs to its end, and the checker prints a calm line.": "It says: not attempted yet. "
                    "Later cells take the function from the package.",
                },
                "The lesson runs to its end, and the checker prints a calm line.",
            ),
            quiz.Question(
                "The tests compare the size of the embedding, and not the doctor's output. Why?",
                {
                    "The doctor's lines differ from one machine to another.": "The size is a fact, the same "
                    "everywhere. Memory, disk and versions are not.",
                    "The doctor takes too long to be run in every test.": "It is run in every test: the cell has to "
                    "work. Only what it prints is not compared.",
                    "A test cannot compare tables, only numbers that a cell prints.": "A test compares text of any "
                    "kind, as long as it is the same in every run.",
                },
                "The doctor's lines differ from one machine to another.",
            ),
        ]
    )
