"""Rotary angles of a Llama layer: plain, linear, YaRN or Llama 3's scaling, as its config.json names them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.rope import RopeSpec, inverse_frequencies, rope_table
from firesteel.model.fields import Fields, SpecError
from firesteel.untrusted.json_file import shorten

YARN_DEFAULTS = {"beta_fast": 32.0, "beta_slow": 1.0}
CHANGES_YARN = (
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)  # of the concentration, which ours has from the factor


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaRope:
    """Angles of plain or YaRN rope; Llama 3's scaling divides those that turn slowly by `factor`."""

    base: RopeSpec
    factor: float = 1.0  # of linear and Llama 3's scaling; 1: neither
    low_turns: float = 0.0  # turns within the original context up to which an angle is divided in full
    high_turns: float = 0.0  # turns from which it is kept; both 0: every angle is divided

    def table(self, head_dim: int, context: int, device: torch.device) -> Tensor:
        """Returns [C, D] fp32 as `rope_table` does."""
        if self.factor == 1:
            return rope_table(self.base, head_dim, context, device)
        positions = torch.arange(context, dtype=torch.float32, device=device)
        angles = torch.outer(positions, self._frequencies(head_dim).to(device))
        return torch.cat((angles.cos(), angles.sin()), dim=-1)

    def _frequencies(self, head_dim: int) -> Tensor:
        plain = inverse_frequencies(self.base, head_dim)
        if self.high_turns == 0:
            return plain / self.factor
        turns = self.base.original_context * plain / (2 * math.pi)
        kept = ((turns - self.low_turns) / (self.high_turns - self.low_turns)).clamp(0, 1)
        return plain * kept + plain / self.factor * (1 - kept)


def read_llama_rope(content: Mapping[str, Any]) -> LlamaRope:
    """Reads `rope_parameters`, or `rope_theta` with `rope_scaling`; raises SpecError for other kinds."""
    named = "rope_parameters" if content.get("rope_parameters") is not None else "rope_scaling"
    scaling = content.get(named)
    if scaling is None:
        scaling = {}
    if not isinstance(scaling, Mapping):
        raise SpecError(f"{named} must be an object, not {shorten(repr(scaling))}")
    if content.get("partial_rotary_factor", 1.0) != 1.0:
        raise SpecError(f"partial_rotary_factor = {shorten(repr(content['partial_rotary_factor']))}: must be 1")
    fields = Fields(scaling, f"{named}.")
    theta = (fields if "rope_theta" in scaling else Fields(content, "")).number("rope_theta")
    if theta <= 1:
        raise SpecError(f"rope_theta = {theta:g}: must exceed 1")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return LlamaRope(base=RopeSpec(theta=theta))
    if kind == "linear":
        return LlamaRope(base=RopeSpec(theta=theta), factor=fields.number("factor"))
    if kind == "llama3":
        return _read_llama3(fields, theta, named)
    if kind == "yarn":
        return LlamaRope(base=_read_yarn(fields, theta, named))
    raise SpecError(
        f"{named}.rope_type = {shorten(repr(kind))}: firesteel computes default, linear, llama3 and yarn"
    )


def _read_llama3(fields: Fields, theta: float, named: str) -> LlamaRope:
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if high <= low:
        raise SpecError(f"{named}.high_freq_factor = {high:g} must exceed low_freq_factor = {low:g}")
    original = fields.integer("original_max_position_embeddings")
    return LlamaRope(
        base=RopeSpec(theta=theta, original_context=original),
        factor=fields.number("factor"),
        low_turns=low,
        high_turns=high,
    )


def _read_yarn(fields: Fields, theta: float, named: str) -> RopeSpec:
    if given := [name for name in CHANGES_YARN if fields.content.get(name) is not None]:
        raise SpecError(f"{named}.{given[0]}: firesteel computes YaRN without it")
    truncate = fields.content.get("truncate", True)
    if not isinstance(truncate, bool):
        raise SpecError(f"{named}.truncate must be true or false, not {shorten(truncate)}")
    betas = {
        name: fields.number(name) if name in fields.content else value for name, value in YARN_DEFAULTS.items()
    }
    return RopeSpec(
        theta=theta,
        factor=fields.number("factor"),
        original_context=fields.integer("original_max_position_embeddings"),
        beta_fast=betas["beta_fast"],
        beta_slow=betas["beta_slow"],
        truncate=truncate,
    )
