"""The questions at the end of `16__the_fix`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "Somebody writes `load_experts(list(experts()))`. What does the hermetic test say?",
                {
                    "`[1, 2, 3]`": "`experts()` is a generator, but `list` runs it to its end before the first "
                    "expert is loaded.",
                    "`[0, 0, 0]`": "The count goes up before each `yield`, so a tensor that is seen was counted.",
                    "`[1, 1, 1]`": "For this the stream would have to stop after its first tensor.",
                    "`[3, 3, 3]`": "The list drains the generator before the first expert is loaded. The fault is "
                    "back.",
                },
                "`[3, 3, 3]`",
            ),
            quiz.Question(
                "Why does the fix not copy the experts too?",
                {
                    "Each one is in the model before the next is asked for.": "So its view is still good. A copy "
                    "would move most of the checkpoint once more, for nothing.",
                    "They are streamed last, so nothing is written over them.": "Their place in the stream does not "
                    "matter. What saves them is when they are read.",
                    "They are packed FP4, and `copy_` would convert them.": "Blocks and scales are `uint8`. They "
                    "can be copied like any other bytes.",
                    "They carry no mark, so `own` would leave them alone.": "The stream marks what it lends, and "
                    "that is every tensor.",
                },
                "Each one is in the model before the next is asked for.",
            ),
            quiz.Question(
                "The first cut owned a tensor by `clone()`. When is that as good as the fix?",
                {
                    "never, as a clone shares memory until it is written to": "A clone has memory of its own at "
                    "once. The question is on which device.",
                    "when the stream yields tensors on the CPU": "As it does for a local disk. There `clone()` is a "
                    "host copy.",
                    "when the checkpoint lies in object storage": "There the stream may yield tensors on the GPU, "
                    "and the clones stay there.",
                    "when the model just fits on the GPU": "That is the worst case: the clones lie beside the model "
                    "until the last expert is loaded.",
                },
                "when the stream yields tensors on the CPU",
            ),
        ]
    )
