"""The questions at the end of `44__reuse`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "With an expert map, why not call `reuse` and then translate the ids?",
                {
                    "A rank cannot run `topk`, as it has no weights of the other experts.": "`topk` takes logits, "
                    "and every rank has those of all experts.",
                    "The metadata belongs to the ids that `topk` saw.": "In the part the slices have other numbers, "
                    "and some picks are gone. It takes packing, or `remap`.",
                    "The translation launches more kernels than packing does.": "It is a part of packing, so it "
                    "launches fewer. The trouble is the result.",
                    "`reuse` refuses an id of -1.": "It never sees one. The -1 comes with the translation, when the "
                    "metadata is made already.",
                },
                "The metadata belongs to the ids that `topk` saw.",
            ),
            quiz.Question(
                "A rank clears its output buffer before each step, and multiplies by a 0/1 mask. All weights are "
                "finite. What is that worth?",
                {
                    "It is right, and costs a launch that `where` does not.": "The launch writes the whole buffer, "
                    "in every layer. `torch.where` needs no cleared buffer.",
                    "It is right, and free: new memory is zero.": "An allocation clears nothing. Clearing is a "
                    "launch that writes the whole buffer.",
                    "It is wrong: 0 times a leftover NaN is NaN.": "That is so without the clearing. Here nothing "
                    "is left over.",
                    "It is wrong: a NaN in a local row gets hidden.": "A local row is multiplied by 1, so its NaN "
                    "stays visible.",
                },
                "It is right, and costs a launch that `where` does not.",
            ),
            quiz.Question(
                "Somebody reports routing 40 % faster, measured eagerly at one token. What do you ask first?",
                {
                    "How many launches does it save?": "The number alone does not decide. What the host does around "
                    "each of them counts, too.",
                    "Is it 40 % at 4096 tokens, too?": "There the products hide the routing. One token is the case "
                    "that matters.",
                    "Is the score on a benchmark the same?": "That is a question about results. It says nothing "
                    "about the claim.",
                    "Does the server use CUDA graphs?": "If so, ask for the same figure there. Eager time is mostly "
                    "the host's, and a graph has nearly none of it.",
                },
                "Does the server use CUDA graphs?",
            ),
        ]
    )
