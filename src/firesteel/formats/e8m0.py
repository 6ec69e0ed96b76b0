"""E8M0, the group scale of the MX formats: byte b is 2^(b - 127), and 255 is NaN."""

import functools

import torch
from torch import Tensor

BIAS = 127
NAN = 255


def encode(x: Tensor) -> Tensor:
    """Returns the largest power of two at or below each x > 0, at least 2^-127, as uint8. NaN gives 255."""
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"e8m0 encodes float32, bfloat16 or float16, not {x.dtype}")
    x = x.float()
    invalid = (x <= 0) | x.isinf()
    if invalid.any():
        raise ValueError(
            f"e8m0 encodes positive finite values only: {int(invalid.sum())} are zero, negative or infinite"
        )
    # float32 has the same bias: its exponent field is the byte, and its subnormals become byte 0
    return torch.where(x.isnan(), NAN, x.view(torch.int32) >> 23).to(torch.uint8)


def decode(scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decodes exactly to float32, bfloat16 or float64; 255 gives NaN. Does not synchronise."""
    return _table(dtype, scales.device).index_select(0, scales.flatten().int()).view(scales.shape)


def check(scales: Tensor) -> None:
    """Raises if any scale is NaN. Synchronises, so it is for loading, not for a step."""
    nan = (scales == NAN).nonzero()
    if len(nan):
        first = tuple(nan[0].tolist())
        raise ValueError(f"{len(nan)} of {scales.numel()} e8m0 scales are NaN (255), the first at {first}")


@functools.cache
def _table(dtype: torch.dtype, device: torch.device) -> Tensor:
    exact = [2.0 ** (byte - BIAS) for byte in range(NAN)] + [float("nan")]
    return torch.tensor(exact, dtype=torch.float64).to(dtype).to(device)
