"""Typed access to the objects of a config.json, with errors that name the field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from firesteel.errors import UserError
from firesteel.untrusted.json_file import shorten

# Limits far above gpt-oss-120b: within them the size of every tensor is below 2^63, and reading takes no time.
LARGEST: dict[str, float] = {
    "num_hidden_layers": 1024,
    "hidden_size": 1 << 16,
    "intermediate_size": 1 << 16,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12,
    "num_local_experts": 1 << 12,
    "num_experts_per_tok": 1 << 12,
    "experts_per_token": 1 << 12,
    "vocab_size": 1 << 22,
    "draft_vocab_size": 1 << 22,
    "target_hidden_size": 1 << 16,
    "sliding_window": 1 << 24,
    "max_position_embeddings": 1 << 24,
    "original_max_position_embeddings": 1 << 24,
    "rms_norm_eps": 1,
    "swiglu_limit": 1e6,
    "rope_theta": 1e12,
    "factor": 1e6,
    "beta_fast": 1e6,
    "beta_slow": 1e6,
    "low_freq_factor": 1e6,
    "high_freq_factor": 1e6,
}


class SpecError(UserError):
    """Raised for a config.json that does not describe a gpt-oss model firesteel can run."""


class Fields:
    """One JSON object; errors put `prefix` before the names of its fields."""

    def __init__(self, content: Mapping[str, Any], prefix: str) -> None:
        self.content, self.prefix = content, prefix

    def reject_unknown(self, known: set[str]) -> None:
        for name in self.content:
            if name not in known:
                shown = shorten(name)
                nearest = difflib.get_close_matches(shown, known, n=1, cutoff=0)[0]
                raise SpecError(
                    f"unknown field {self.prefix}{shown}, which may change the network (nearest known: {nearest})"
                )

    def number(self, name: str) -> float:
        value = self.content.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise SpecError(f"{self.prefix}{name} must be a positive number, not {shorten(value)}")
        if value > LARGEST[name]:
            raise SpecError(f"{self.prefix}{name} = {shorten(value)}: the limit is {LARGEST[name]:g}")
        return float(value)

    def integer(self, name: str) -> int:
        value = self.number(name)
        if not value.is_integer():
            raise SpecError(f"{self.prefix}{name} must be a whole number, not {value!r}")
        return int(value)
