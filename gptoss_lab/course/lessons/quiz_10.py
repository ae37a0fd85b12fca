"""The questions at the end of `10__every_answer_is_bang`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "Why compare bytes, and not `torch.equal` on the tensors?",
                {
                    "`torch.equal` allows a small tolerance, so a changed bit passes.": "It allows none. "
                    "`torch.allclose` is the one with a tolerance.",
                    "`torch.equal` ignores the shape.": "It compares shapes too. The trouble is in the values.",
                    "NaN is not equal to itself, and `0.0 == -0.0`.": "So the same NaN bits would count as a "
                    "difference, and a zero with another sign would count as equal.",
                    "`torch.equal` is too slow for 155 tensors.": "Speed is no argument here. It gives the wrong "
                    "answer for some bits.",
                },
                "NaN is not equal to itself, and `0.0 == -0.0`.",
            ),
            quiz.Question(
                "The limit is one byte below the size of the checkpoint, and only a handful of tensors is wrong. "
                "Why is the whole answer lost?",
                {
                    "A wrong norm, router or scale can alone spoil every logit.": "All later layers read what it "
                    "spoiled. So the answer says nothing about how much is wrong.",
                    "The tensor that does not fit is cut off, and the missing bytes are NaN.": "No tensor is cut. "
                    "One that does not fit starts a new request, whole, at the front of the buffer.",
                    "The streamer gives up, and the other tensors stay empty.": "All 155 arrive, whatever the "
                    "limit. Most of them are right in the model, too.",
                },
                "A wrong norm, router or scale can alone spoil every logit.",
            ),
            quiz.Question(
                "A test loads through this loader with the smallest buffer, and compares the last five tensors. It "
                "is green. What does it prove?",
                {
                    "that the loader is right, since the end of a file is lost first": "It is the other way round. "
                    "What comes later is written over what came before.",
                    "that the limit was large enough": "It is the smallest one, and nearly every tensor is wrong.",
                    "that the threads did not get in each other's way this time": "It is no race. Any number of "
                    "threads loses the same bytes.",
                    "nothing about the tensors before them": "Nothing was written over the last ones, so they are "
                    "right in the broken loader, too.",
                },
                "nothing about the tensors before them",
            ),
        ]
    )
