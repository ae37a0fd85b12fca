"""The questions at the end of `90__on_your_own`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "The loader copies every tensor that it does not tie when it arrives. Somebody compares each copy "
                "with the stream at that moment. What does this check see?",
                {
                    "the fault, since it compares every byte": "A parameter that is wrongly tied is left out. There "
                    "is no copy of it to compare.",
                    "the fault, if the buffer is small enough": "The buffer decides which tensors are tied. The "
                    "copies that are made are right at every limit.",
                    "nothing, since every copy that is made is right": "What goes wrong is the comparison with kept "
                    "views. A view of reused memory equals whatever lies there now.",
                    "the copies that are overwritten later": "A copy has memory of its own, which the stream does "
                    "not write to.",
                },
                "nothing, since every copy that is made is right",
            ),
            quiz.Question(
                "Somebody keeps the rotary tables in a dict outside the step, with the base as the key. When does "
                "that fail?",
                {
                    "at the first layer with another base": "The base is the key, so that layer gets a table of its "
                    "own.",
                    "at the next position, whose tables differ": "A table depends on the position, too. The key "
                    "finds the one of the position before.",
                    "only when the position comes in a new tensor": "It fails with the same tensor as well: the "
                    "server writes the next number into it.",
                    "never, since the base is all that a table depends on": "It depends on the position as well.",
                },
                "at the next position, whose tables differ",
            ),
            quiz.Question(
                "The pull request's author answers your objection with one more test, on a checkpoint of three "
                "files and with the default limit. Are you content?",
                {
                    "Yes: three files have two borders.": "A border does harm only where a request ends near it. "
                    "With the default limit all of it is one request.",
                    "Yes, if the test compares every byte.": "Every byte is right here. With the default limit "
                    "nothing is overwritten.",
                    "No: the files would have to be larger than the default limit.": "Small files do as well, with "
                    "a limit below their sum.",
                    "No: with this limit nothing is overwritten.": "The test needs a limit below the sum, and sizes "
                    "at which the miscounted border matters.",
                },
                "No: with this limit nothing is overwritten.",
            ),
        ]
    )
