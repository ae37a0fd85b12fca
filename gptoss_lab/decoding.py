"""One token after another: the key-value cache and greedy generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer
from torch import Tensor

if TYPE_CHECKING:
    from gptoss_lab.model import GptOss


class Cache:
    """Every layer's keys and values of the tokens seen so far, so that a new token costs one row, not all."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """How many tokens have been seen."""
        return self.layers[0][0].shape[0] if self.layers else 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the rows of new tokens; returns the rows of all tokens, [seen, kv_heads, head_dim] each."""
        if layer in self.layers:
            old_keys, old_values = self.layers[layer]
            keys = torch.cat([old_keys, keys])  # [seen, kv_heads, head_dim]
            values = torch.cat([old_values, values])  # [seen, kv_heads, head_dim]
        self.layers[layer] = keys, values
        return keys, values


@dataclass(frozen=True)
class Generation:
    """A greedy answer: its text without the prompt, its token ids, and how sick the logits were.

    `nonfinite` is the share of NaN and infinite values among all the logits that a token was chosen from.
    """

    text: str
    tokens: list[int]
    nonfinite: float


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint's folder."""
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


@torch.no_grad()
def generate(
    model: GptOss,
    tokenizer: Tokenizer,
    prompt: str,
    max_new_tokens: int = 12,
    experts: Callable | None = None,
) -> Generation:
    """Continue a prompt, each time with the most likely token, until an end token or `max_new_tokens`.

    NaN logits are no error here, as they are none in a serving engine. `argmax` takes NaN for the largest
    value, so over a row of NaN it returns index 0, and in gpt-oss's alphabet token 0 is `!`.

    Raises:
        ValueError: the prompt has no token.
        ModelNotReady: the model was not filled.
    """
    new = tokenizer.encode(prompt).ids
    if not new:
        raise ValueError(f"prompt {prompt!r} has no token: give at least one word")
    cache, tokens, broken, total = Cache(), [], 0, 0
    while len(tokens) < max_new_tokens:
        logits = model(torch.tensor(new), cache=cache, experts=experts)[-1]  # [vocab]
        broken += int((~logits.isfinite()).sum())
        total += logits.numel()
        new = [int(logits.argmax())]
        tokens += new
        if new[0] in model.config.eos_token_id:
            break
    return Generation(tokenizer.decode(tokens), tokens, broken / total if total else 0.0)
