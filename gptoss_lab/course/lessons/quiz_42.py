"""The questions at the end of `42__twenty_launches`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "A call has 20 launches at one token, and 20 at 4096. When do they matter?",
                {
                    "with many tokens, as each launch does more then": "With many tokens the experts' products take "
                    "most of the time, and the launches hide behind them.",
                    "always alike, as their number is the same": "The same cost is a large part of a short step, "
                    "and a small part of a long one.",
                    "with few tokens, as the rest of the step is short then": "So when few users are served at a "
                    "time: decoding at low concurrency.",
                },
                "with few tokens, as the rest of the step is short then",
            ),
            quiz.Question(
                "`index` has dtype int32. A colleague replaces `x[index]` by `x[index.long()]`, to save the hidden "
                "copy. How many launches does that save?",
                {
                    "none, as the copy is still made": "The copy is a launch of its own now, and the index is the "
                    "other. To save it, the index must be int64 from the start.",
                    "one, as the index needs no copy any more": "The index needs none. `long()` makes the same copy "
                    "one step earlier.",
                    "two, as a cast launches nothing": "A cast to the dtype that is there launches nothing. This "
                    "one changes the dtype.",
                },
                "none, as the copy is still made",
            ),
            quiz.Question(
                "Under a CUDA graph the host's cost is nearly gone. Do needless launches still count?",
                {
                    "No: a graph leaves out what is computed twice.": "It replays all that was recorded, the "
                    "needless kernels with the useful ones.",
                    "No: the kernels of a graph run at the same time.": "Here each waits for the one before it.",
                    "Yes: the host still launches them one by one.": "It makes one call for the whole graph.",
                    "Yes: each kernel takes its time on the device.": "It starts, reads, writes and ends, and the "
                    "next one waits for it.",
                },
                "Yes: each kernel takes its time on the device.",
            ),
        ]
    )
