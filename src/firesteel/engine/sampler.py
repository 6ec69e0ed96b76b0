"""Next tokens from logits; the random stream of a request depends on its seed and the position only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from firesteel.types import SamplingParams


def sample(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """One token a row of logits [R, V] fp32; `positions` are those of the tokens to come."""
    chosen = logits.argmax(dim=-1)
    for row, (one, position) in enumerate(zip(params, positions, strict=True)):
        if one.temperature > 0:
            chosen[row] = _draw(logits[row], one, position)
    return [int(token) for token in chosen.tolist()]


def _draw(row: Tensor, params: SamplingParams, position: int) -> Tensor:
    """Gumbel's way: the largest of log-probabilities plus independent noise is a draw from the softmax."""
    seed = (params.seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03) % (1 << 63)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.empty(row.shape[-1], dtype=torch.float32).exponential_(generator=generator)
    # Relative to the largest logit, so that a temperature near 0 cannot overflow the best token to infinity.
    return ((row - row.max()) / params.temperature - noise.to(row.device).log()).argmax()
