"""The questions at the end of `12__borrowed_views`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "`weights = {n: t.contiguous() for n, t in stream(files)}`. Is that safe?",
                {
                    "Yes: `contiguous()` returns a new tensor.": "Only if it must. A streamed tensor is contiguous "
                    "already, so the same one comes back.",
                    "No: each call returns the same tensor, a view.": "The streamed tensors are contiguous already, "
                    "so the call returns each of them as it is.",
                    "Yes: the dict keeps the buffer alive, so it cannot be reused.": "A reference keeps memory from "
                    "being freed. It does not keep anybody from writing to it.",
                },
                "No: each call returns the same tensor, a view.",
            ),
            quiz.Question(
                "A loader keeps a view of a single tensor until the stream has ended. Which tensor is right at "
                "every limit?",
                {
                    "the first": "A second request starts at the front of the buffer, where the first tensor lies.",
                    "the largest": "Its size does not protect it. A later request is written over its first bytes.",
                    "any one": "It fits. So do the next ones, at the same place.",
                    "the last one": "Nothing is streamed after it. A test that looks at it alone cannot fail.",
                },
                "the last one",
            ),
            quiz.Question(
                "A model has 70 GB, and the machine 2 TB of memory. Somebody proposes a limit of 80 GB as the fix. "
                "What do you answer?",
                {
                    "It is one: the checkpoint fits, so nothing is overwritten.": "True of this model. The loader "
                    "still keeps views too long, and the next larger model brings the fault back.",
                    "It will not help: the buffer is reused whatever its size.": "It does help. A buffer that holds "
                    "everything is filled once.",
                    "It hides the fault, at the price of 70 GB while loading.": "The loader has to stop keeping "
                    "views. Then any limit will do.",
                    "It helps with one reader thread only.": "The number of threads changes no byte.",
                },
                "It hides the fault, at the price of 70 GB while loading.",
            ),
        ]
    )
