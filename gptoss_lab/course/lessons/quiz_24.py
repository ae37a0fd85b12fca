"""The questions at the end of `24__object_storage`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "The stale files were named so that they sort before the right ones. What would the model have said?",
                {
                    "the wrong capital, as before": "The later of two tensors stays, and the right ones would have "
                    "come later.",
                    "the right capital": "So nobody would have noticed, until a rename. All the bytes would still have "
                    "been read twice.",
                    "nothing, since a name that comes twice is an error": "Only if somebody counts names. A loader "
                    "that copies what comes does not.",
                },
                "the right capital",
            ),
            quiz.Question(
                "A loader passes its test with two ranks and a model of 1 GiB. What has the test shown?",
                {
                    "that it copies in time": "A loader that keeps every view passes, too: nothing follows the one "
                    "batch that each rank receives.",
                    "that gloo and NCCL do the same": "The backend decides where the buffers lie, and not how often "
                    "they are filled.",
                    "that the buffers are large enough for any model": "They have a fixed size. A larger model takes "
                    "more rounds.",
                    "nothing about late reads": "It takes a third rank, or a second round, before a broadcast "
                    "overwrites anything.",
                },
                "nothing about late reads",
            ),
            quiz.Question(
                "Eight ranks on one host load gpt-oss-20b with host copies, and the host runs out. What helps most?",
                {
                    "placing each tensor as it arrives": "Then nothing waits, on the host or on the GPU.",
                    "copies on the device instead": "The same bytes then wait on each GPU, where there is less room.",
                    "a smaller staging buffer": "What waits are the loader's own copies. No limit of the streamer "
                    "reaches them.",
                    "more ranks, since each then reads less": "Each reads less, but still receives and copies "
                    "everything.",
                },
                "placing each tensor as it arrives",
            ),
        ]
    )
