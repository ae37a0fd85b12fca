"""The questions at the end of `20__ownership`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "A stream marks the storage of each tensor. A loader repacks a weight in NumPy and then owns it by "
                "that mark. What happens?",
                {
                    "the mark goes along, since the memory is the same": "A mark is on an object. NumPy's way back "
                    "makes another storage object over the same memory.",
                    "nothing is copied, and the weight is at risk": "The new storage has no mark, so the helper hands "
                    "the tensor on. Only its addresses tell whose memory it is.",
                    "NumPy copies, so there is nothing left to own": "Neither `tensor.numpy()` nor "
                    "`torch.from_numpy` copies. Both see the same bytes.",
                },
                "nothing is copied, and the weight is at risk",
            ),
            quiz.Question(
                "With streamer 0.17 and its default, a loader keeps all norms of a checkpoint, as they came. What is "
                "the price?",
                {
                    "the bytes of the norms": "Each of them is a view of a ring buffer, and a view holds all of it.",
                    "wrong norms at a small limit": "The default gives each tensor away: its buffer is not written "
                    "again.",
                    "nothing, since they are owned": "They are safe to keep. Safe is not free.",
                    "nearly the whole checkpoint in host memory": "There is a norm in nearly every buffer, and one "
                    "view keeps its buffer. Copies of the norms would let the buffers go.",
                },
                "nearly the whole checkpoint in host memory",
            ),
            quiz.Question(
                "A project asks for `runai-model-streamer>=0.15.7`. Its loader needs owned tensors. What protects it?",
                {
                    "`owned=True` in the call": "A release that only lends does not know this argument, and raises a "
                    "TypeError at the first load.",
                    "a fresh install": "It takes the newest release today. A lock, a mirror or an image may hold an "
                    "older one, which the requirement allows.",
                    "a test that passes with 0.17": "It says nothing about the other releases that are allowed.",
                },
                "`owned=True` in the call",
            ),
        ]
    )
