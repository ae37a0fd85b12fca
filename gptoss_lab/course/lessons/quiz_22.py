"""The questions at the end of `22__when_bytes_change`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "A flaky test of a loader passes once somebody adds `time.sleep(0.1)` before the read. What follows?",
                {
                    "the read is in time now": "Sleeping before a read makes it later, never earlier.",
                    "the machine was too slow for the test": "Speed decides when the fault shows, not whether it is "
                    "there.",
                    "there is another race, and it is hidden now": "A late read gets worse by waiting. If waiting "
                    "helps, something else had not finished.",
                },
                "there is another race, and it is hidden now",
            ),
            quiz.Question(
                "Why may `settled` hold back a whole request, though a loader is promised single tensors?",
                {
                    "the promise holds until the `next()` after the request": "And that `next()` is asked for only "
                    "when every tensor of the request was handed on.",
                    "it copies the tensors while it waits": "Then a late read would find the right bytes, and the test "
                    "would prove nothing.",
                    "loaders do not look at the order": "The order stays the same. What matters is when the stream "
                    "moves on.",
                    "requests are small": "A request can fill the whole buffer. Its size does not matter here.",
                },
                "the promise holds until the `next()` after the request",
            ),
            quiz.Question(
                "`prove` reports nothing for your loader. What do you know?",
                {
                    "the loader is right": "It may load wrong values for another reason. Compare the tensors as well.",
                    "in this run it read nothing late": "Another configuration may take another path through the "
                    "loader, so run it for each.",
                    "no tensor was kept": "Keeping is allowed. Only a read after the memory was recycled ends the "
                    "process.",
                    "nothing, since races differ from run to run": "The protected memory does not depend on timing: a "
                    "late read that happens is always seen.",
                },
                "in this run it read nothing late",
            ),
        ]
    )
