"""The questions at the end of `48__one_launch`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "Which of these does a pick's row really wait for?",
                {
                    "the bits that `topk` packs": "They say the same as the ids. Whoever has the ids can count them.",
                    "a copy of the index in int64": "PyTorch wants it for `[...]`. A kernel that knows the row needs "
                    "none.",
                    "the offsets of the blocks": "They follow from the sizes, and so do the rows. Neither needs the "
                    "other.",
                    "the picks of all tokens": "One more pick of a smaller expert moves it down by one.",
                },
                "the picks of all tokens",
            ),
            quiz.Question(
                "Why does no program wait in a loop until all parts are written?",
                {
                    "A loop in a kernel has to have a fixed length.": "It need not: `while` is allowed. The length is "
                    "not the trouble.",
                    "A waiting program can keep out the one that it waits for.": "A device holds so many programs at "
                    "a time. If all of them wait, no other can start, and they wait for ever.",
                    "The other programs' writes never become visible in the same launch.": "They do, with an atomic "
                    "that releases and acquires. The last program reads them so.",
                    "It would need a second counter.": "One is enough for both ways. What differs is who holds a "
                    "place on the device.",
                },
                "A waiting program can keep out the one that it waits for.",
            ),
            quiz.Question(
                "The one-launch router passes every test in Triton's interpreter. What is still unknown?",
                {
                    "whether its threads can overtake one another": "The interpreter has no threads. It runs one "
                    "program after the other, and each operation for the whole array.",
                    "whether it writes out of bounds": "Poisoned memory around each output shows that there, too.",
                    "whether two picks of one expert keep their order": "That depends on the numbers alone, and they "
                    "are the same there.",
                    "how many launches it takes": "They are counted at the call, and the call is the same.",
                },
                "whether its threads can overtake one another",
            ),
        ]
    )
