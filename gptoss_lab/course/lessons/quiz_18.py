"""The questions at the end of `18__same_fault_elsewhere`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "A loader keeps `tensor.shape` and `tensor.dtype` of every tensor to the end. What does the audit say?",
                {
                    "it reports every tensor": "It would if the tensors themselves were kept for the sake of their "
                    "shapes. It reports what is held, read or not.",
                    "nothing": "A shape and a dtype hold no storage, so nothing is on loan any more.",
                    "it reports those that a later request covers": "Their memory is written over, but nobody holds "
                    "it, so nobody can read it late.",
                },
                "nothing",
            ),
            quiz.Question(
                "Why does the audit miss case 3, the worker thread?",
                {
                    "it cannot see into other threads": "It looks at storage, not at threads, so it sees "
                    "whoever holds it.",
                    "the worker copies, so nothing is ever held": "It does hold the tensor, for one step longer than "
                    "it may.",
                    "it looks only at tensors that were yielded twice": "No tensor is yielded twice. It looks at all "
                    "that were handed out.",
                    "the worker lets go one step later, as a loop variable does": "That step is granted to everybody. "
                    "Without it the audit would complain about correct loaders.",
                },
                "the worker lets go one step later, as a loop variable does",
            ),
            quiz.Question(
                "In case 2, all weights of a file come before all their scales. What does the right fix cost then?",
                {
                    "host memory for every weight that waits": "Most of the file waits. A loader that cannot afford "
                    "this has to read in another order.",
                    "nothing, since scales are small": "The scales are small, but it is the weights that wait "
                    "for them.",
                    "a second pass over the file": "That would be another fix. Owning what waits reads the file once.",
                },
                "host memory for every weight that waits",
            ),
        ]
    )
