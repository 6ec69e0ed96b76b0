"""FP8 with one scale per row: E4M3 elements, and an fp32 scale that makes the row's largest value 448."""

import torch
from torch import Tensor

from firesteel.formats import e4m3

LEAST = 2.0**-100  # the largest value of a row counts as at least this, so that the inverse of the scale is finite


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes fp32 x [..., K] to E4M3 codes [..., K] uint8 and scales [..., 1] fp32. Does not synchronise.

    A row with a value that is not finite gets the scale NaN.
    """
    largest = x.abs().amax(-1, keepdim=True)
    largest = torch.where(largest.isfinite(), largest.clamp(min=LEAST), torch.nan)
    inverse = torch.full_like(largest, e4m3.LARGEST) / largest  # rounded once: torch divides a number in two steps
    return e4m3.encode(x * inverse), largest / e4m3.LARGEST


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """Decodes to fp32 [..., K]."""
    return e4m3.decode(codes) * scales
