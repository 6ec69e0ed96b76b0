"""MXFP8: E4M3 elements, one per byte; one E8M0 scale per 32 elements."""

import torch
from torch import Tensor

from firesteel.formats import e4m3, group


def quantize(x: Tensor, rule: str = "ocp") -> tuple[Tensor, Tensor]:
    """Quantizes x [..., K] to codes [..., K] (E4M3) and scales [..., K/32], both uint8. See group.quantize."""
    return group.quantize(x, e4m3.E4M3, rule)


def dequantize(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decodes codes [..., K] and scales [..., K/32] to [..., K]. Does not synchronise.

    Exact in float32 below 2^128, larger products are infinite; narrower dtypes round once.
    NaN codes and scale 255 give NaN.
    """
    group.check_shapes(codes, scales, values_per_byte=1)
    return group.dequantize(e4m3.decode(codes), scales, dtype)
