"""Angles of the rotary position embedding, plain or stretched by YaRN.

A table is [C, D] fp32: row p holds the cosines of the D/2 angles at position p, then their sines, both multiplied
by YaRN's concentration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Facts of the checkpoint. `factor` 1 is plain rope; otherwise YaRN stretches `original_context`."""

    theta: float
    factor: float = 1.0
    original_context: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = False


def rope_table(spec: RopeSpec, head_dim: int, context: int, device: torch.device) -> Tensor:
    positions = torch.arange(context, dtype=torch.float32, device=device)
    angles = torch.outer(positions, inverse_frequencies(spec, head_dim).to(device))
    concentration = 0.1 * math.log(spec.factor) + 1.0 if spec.factor > 1 else 1.0
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * concentration


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> Tensor:
    """Returns [D/2] fp32. YaRN keeps fast dimensions, divides slow ones by `factor`, and blends in between.

    Computed on the CPU, whatever torch's default device: powers on a GPU differ in their last bit, and vLLM builds
    models with the GPU as the default.
    """
    cpu = torch.device("cpu")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=cpu) / head_dim
    plain = 1.0 / spec.theta**exponents
    if spec.factor == 1:
        return plain
    low, high = _dimension(spec.beta_fast, spec, head_dim), _dimension(spec.beta_slow, spec, head_dim)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32, device=cpu) - low) / max(high - low, 0.001)
    slow = ramp.clamp(0, 1)
    return plain / spec.factor * slow + plain * (1 - slow)


def _dimension(rotations: float, spec: RopeSpec, head_dim: int) -> float:
    """Returns the (fractional) dimension that turns `rotations` times within the original context."""
    turns = spec.original_context / (rotations * 2 * math.pi)
    return head_dim * math.log(turns) / (2 * math.log(spec.theta))
