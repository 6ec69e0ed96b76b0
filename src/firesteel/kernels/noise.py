"""Random numbers as a pure function of seed, position and token id.

The generator is splitmix64, which needs no memory of earlier draws: number i of a stream is a mix of its key and
i * GOLDEN, and the key is a mix of seed and position. All of it is arithmetic on 64-bit integers, so every device
and batch gives the same bits; only the two logarithms at the end may differ in their last place.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Within these bounds fp32 neither divides 0 by 0 nor -inf by inf; beyond them the draw would be the same.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-30, 1e30
_GOLDEN = 0x9E3779B97F4A7C15
_SHIFTS = (30, 27, 31)
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = 2**64 - 1


def stream_key(seed: int, position: int) -> int:
    """Returns the key of the stream for one draw, a signed 64-bit integer; every bit of the seed counts."""
    return _signed(_mix((_mix(seed + _GOLDEN) + position) & _MASK))


def token_steps(vocab_size: int, device: torch.device) -> Tensor:
    """Returns [V] int64: the offset of each token id in a stream."""
    return torch.arange(1, vocab_size + 1, device=device).mul_(_signed(_GOLDEN))


def gumbel_noise(keys: Tensor, steps: Tensor) -> Tensor:
    """Returns [N, V] fp32 from keys [N] and steps [V]: -log of an exponential variable."""
    # Half a step above 0 and at most one below 1, so that both logarithms are finite.
    uniform = _bits(keys, steps).float().add_(0.5).mul_(2.0**-53).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _bits(keys: Tensor, steps: Tensor) -> Tensor:
    """Returns [N, V] int64: the upper 53 bits of each random number."""
    mixed = keys[:, None] + steps
    for shift, factor in zip(_SHIFTS, (*_FACTORS, None), strict=True):
        # `>>` copies the sign; the mask makes the shift one of unsigned numbers.
        mixed ^= (mixed >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        if factor is not None:
            mixed *= _signed(factor)
    return (mixed >> 11).bitwise_and_(2**53 - 1)


def _mix(value: int) -> int:
    """Mixes a Python integer as `_bits` mixes a tensor."""
    value &= _MASK
    for shift, factor in zip(_SHIFTS, (*_FACTORS, 1), strict=True):
        value = (value ^ (value >> shift)) * factor & _MASK
    return value


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
