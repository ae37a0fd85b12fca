"""Speculative decoding, greedy: a draft model guesses ahead, the target checks all guesses at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from gptoss_lab.model import GptOss


@dataclass(frozen=True)
class Drafted:
    """An answer, its tokens and how often the target was run for it."""

    text: str
    tokens: int
    checks: int

    @property
    def acceptance_length(self) -> float:
        """Tokens that one run of the target gave: 1 if no guess is ever right."""
        return self.tokens / self.checks


@torch.no_grad()
def speculate(
    target: GptOss, draft: GptOss, tokenizer: Tokenizer, prompt: str, depth: int = 3, most: int = 12
) -> Drafted:
    """Answer as `target` alone would, greedily, up to an end token or `most` tokens; `draft` only saves runs.

    The draft guesses `depth` tokens. The target is run once over them; its own choices stand as far as the guesses
    agree, and the first that does not agree stands as well (Leviathan et al., 2023, without sampling).
    """
    prompt_tokens = tokenizer.encode(prompt).ids
    new: list[int] = []
    checks = 0
    while len(new) < most and not set(new) & set(target.config.eos_token_id):
        seen = prompt_tokens + new
        guesses: list[int] = []
        for _ in range(depth):
            guesses.append(int(draft(torch.tensor(seen + guesses))[-1].argmax()))
        choices = target(torch.tensor(seen + guesses))[len(seen) - 1 :].argmax(-1).tolist()  # [depth + 1]
        checks += 1
        for guess, choice in zip([*guesses, None], choices, strict=True):
            new.append(choice)
            if choice != guess or choice in target.config.eos_token_id or len(new) == most:
                break
    return Drafted(tokenizer.decode(new), len(new), checks)
