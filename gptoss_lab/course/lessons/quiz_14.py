"""The questions at the end of `14__from_bytes_to_bangs`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "Why are FP4 blocks so rarely NaN when they are read as BF16?",
                {
                    "FP4 has no NaN, so its bytes cannot become one.": "FP4 has none, but read as BF16 the same "
                    "bits mean something else.",
                    "NaN needs all eight exponent bits, and few values have them.": "Random bytes have that once in "
                    "256 values. Trained weights use large nibbles less often, so it is rarer still.",
                    "Blocks are divided by their scale first, so they are small.": "The scales stand in a tensor of "
                    "their own. Read as BF16, blocks spread over all magnitudes.",
                },
                "NaN needs all eight exponent bits, and few values have them.",
            ),
            quiz.Question(
                "All of a model's tensors have dtype BF16, and the same loader ruins it. What does it answer?",
                {
                    "the same marks: overwritten is overwritten": "The marks came from bytes of another dtype, "
                    "which are far too large when read as BF16.",
                    "what it should: equal dtypes can stand for each other": "The numbers are of an ordinary size, "
                    "and they are still another tensor's.",
                    "words, though not the right ones": "Weights in the place of others of their dtype have "
                    "ordinary magnitudes, so nothing overflows.",
                    "nothing: the loader raises an error": "Shapes and dtypes fit, so there is nothing to raise for.",
                },
                "words, though not the right ones",
            ),
            quiz.Question(
                "A monitor raises an alarm when logits are not finite. What does it miss in this lesson?",
                {
                    "the head of zeros, and the loader that is half fixed": "Both can have finite logits: equal "
                    "ones with the head of zeros, wrong ones at some limits of the half-fixed loader.",
                    "the loader that keeps every view, with the smallest buffer": "There every logit is NaN, so the "
                    "alarm goes off.",
                    "the model whose NaN weights were set to zero": "Its weights are finite, and every logit is NaN "
                    "all the same.",
                    "nothing: damaged weights always end in NaN": "Expert blocks of wrong bytes alone do not. Every "
                    "nibble is a valid FP4 value.",
                },
                "the head of zeros, and the loader that is half fixed",
            ),
        ]
    )
