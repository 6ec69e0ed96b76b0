"""E4M3, the 8-bit element (OCP FP8 E4M3FN): no infinity, NaN is 0x7F and 0xFF, the largest value is 448."""

import torch
from torch import Tensor

from firesteel.formats.group import Element

E4M3 = Element(name="e4m3", exponent_bits=4, mantissa_bits=3, bias=7, max_magnitude=0x7E, nan_code=0x7F)
LARGEST = E4M3.value(E4M3.max_magnitude)  # 448

encode = E4M3.encode


def decode(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decodes exactly to float32, bfloat16, float16 or float64. Uses torch's conversion, faster than a table."""
    return codes.view(torch.float8_e4m3fn).to(dtype)
