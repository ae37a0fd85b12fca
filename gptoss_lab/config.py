"""The shape of a gpt-oss model, as its config.json tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """A config.json that this package's gpt-oss cannot honour."""


@dataclass(frozen=True)
class Yarn:
    """How rotary positions are stretched beyond the context of pre-training (YaRN, arXiv 2309.00071)."""

    factor: float = 32.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_max_position_embeddings: int = 4096
    truncate: bool = False


@dataclass(frozen=True)
class Config:
    """A model's shape, in the field names of gpt-oss's config.json. The defaults are gpt-oss-20b.

    `layer_types` names each layer's attention, "sliding_attention" or "full_attention"; None alternates the
    two, sliding first. `eos_token_id` holds every id that ends an answer.
    """

    num_hidden_layers: int = 24
    num_local_experts: int = 32
    vocab_size: int = 201088
    hidden_size: int = 2880
    intermediate_size: int = 2880
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    head_dim: int = 64
    num_experts_per_tok: int = 4
    sliding_window: int = 128
    layer_types: tuple[str, ...] | None = None
    swiglu_limit: float = 7.0
    rms_norm_eps: float = 1e-5
    rope_theta: float = 150000.0
    rope_scaling: Yarn = field(default_factory=Yarn)
    eos_token_id: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._require_divisible("hidden_size", self.hidden_size, 32)
        self._require_divisible("intermediate_size", self.intermediate_size, 32)
        self._require_divisible("head_dim", self.head_dim, 2)
        self._require_divisible("sliding_window", self.sliding_window, 1)
        self._require_divisible("num_attention_heads", self.num_attention_heads, self.num_key_value_heads)
        if not 1 <= self.num_experts_per_tok <= self.num_local_experts:
            raise ConfigError(
                f"num_experts_per_tok is {self.num_experts_per_tok}, num_local_experts "
                f"{self.num_local_experts}: choose 1 to {self.num_local_experts}"
            )
        self._require_known_layer_types()

    def window(self, layer: int) -> int | None:
        """How many tokens a layer looks at, the token itself included; None means all of them."""
        if self.layer_types is None:
            return self.sliding_window if layer % 2 == 0 else None
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None

    @classmethod
    def from_file(cls, path: str | Path) -> Config:
        """Read a config.json, or the one in a folder, in either of the forms that transformers has written.

        Rotary parameters may stand under `rope_scaling` (with `rope_theta` beside it) or, in transformers 5,
        under `rope_parameters`; the experts of a token under `num_experts_per_tok` or `experts_per_token`.

        Raises:
            FileNotFoundError: there is no such file.
            ConfigError: it is not JSON, another kind of model, or a variant whose maths is not computed here.
        """
        path = Path(path)
        path = path / "config.json" if path.is_dir() else path
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON ({error}): fetch the file again") from error
        try:
            return cls(**_fields_of(given))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def _require_divisible(self, name: str, value: int, by: int) -> None:
        if value < 1 or value % by:
            raise ConfigError(f"{name} is {value}: choose a positive multiple of {by}")

    def _require_known_layer_types(self) -> None:
        if self.layer_types is None:
            return
        if len(self.layer_types) != self.num_hidden_layers:
            raise ConfigError(
                f"layer_types names {len(self.layer_types)} layers, num_hidden_layers is "
                f"{self.num_hidden_layers}: name every layer, or leave layer_types out"
            )
        unknown = set(self.layer_types) - {"sliding_attention", "full_attention"}
        if unknown:
            raise ConfigError(f"layer_types holds {sorted(unknown)}: use sliding_attention and full_attention")


# What a checkpoint must say itself: a wrong default here would only show as a shape error much later.
_REQUIRED = (
    "num_hidden_layers num_local_experts vocab_size hidden_size intermediate_size num_attention_heads "
    "num_key_value_heads head_dim"
).split()
# Variants that this model does not compute.
_FIXED = {
    "attention_bias": True,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "swiglu_alpha": 1.702,
}


def _fields_of(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict) or given.get("model_type") != "gpt_oss":
        found = given.get("model_type") if isinstance(given, dict) else type(given).__name__
        raise ConfigError(f"model_type is {found!r}: only 'gpt_oss' can be read here")
    for name, value in _FIXED.items():
        if given.get(name, value) != value:
            raise ConfigError(f"{name} is {given[name]!r}: only {value!r} is implemented")
    lacking = [name for name in _REQUIRED if given.get(name) is None]
    if lacking:
        raise ConfigError(f"no value for {', '.join(lacking)}: take the config.json that belongs to the checkpoint")
    known = {f.name for f in fields(Config)}
    chosen = {name: value for name, value in given.items() if name in known and value is not None}
    if given.get("experts_per_token") is not None:
        chosen.setdefault("num_experts_per_tok", given["experts_per_token"])
    if "layer_types" in chosen:
        chosen["layer_types"] = tuple(chosen["layer_types"])
    if "eos_token_id" in chosen:
        ids = chosen["eos_token_id"]
        chosen["eos_token_id"] = tuple(ids) if isinstance(ids, list) else (ids,)
    return chosen | _rope_of(given)


def _rope_of(given: dict[str, Any]) -> dict[str, Any]:
    rope = given.get("rope_parameters") or given.get("rope_scaling")
    if rope is None:
        return {}
    rope = {name: value for name, value in rope.items() if value is not None}
    kind = rope.pop("rope_type", rope.pop("type", None))
    if kind != "yarn":
        raise ConfigError(f"rope_type is {kind!r}: only 'yarn' is implemented")
    chosen = {"rope_theta": rope.pop("rope_theta")} if "rope_theta" in rope else {}
    unknown = set(rope) - {f.name for f in fields(Yarn)}
    if unknown:
        raise ConfigError(f"the rotary parameters hold {sorted(unknown)}: remove them, they are not implemented")
    # transformers rounds the ends of the ramp unless the file says otherwise, and gpt-oss's file does.
    return chosen | {"rope_scaling": Yarn(**({"truncate": True} | rope))}
