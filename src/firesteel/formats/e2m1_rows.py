"""Rows of MXFP4 weights that E4M3 represents exactly with one power of two per row.

E2M1 times 2^d is exact in E4M3 for 15 consecutive d, -8 to 6. So a row fits if the scales of its groups span at
most 2^14; the group with the largest scale is then widened times 2^6.
"""

import torch
from torch import Tensor

from firesteel.formats import e8m0

MOST_SPAN = 14  # of the exponents of a row's scales
MOST_EXPONENT = 6  # 6 * 2^6 = 384 is below 448, 6 * 2^7 is not
# Scales of weights that bf16 holds exactly when they are widened times 2^-32, by csrc/widen.cuh
LEAST_SCALE, MOST_SCALE = 127 - 93, 127 + 33


def find_bounds(codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the smallest and the largest scale [...] of each row, as bytes.

    Codes are [..., K/2], scales [..., K/32]. Groups of zeros do not count, unless their scale is so large that
    widening to bf16 would make NaN of them; a row without a group that counts has 127.
    """
    least, most = scales.amin(-1), scales.amax(-1)
    unclear = (most - least > MOST_SPAN) | (least < LEAST_SCALE) | (most > MOST_SCALE)
    if not unclear.any():
        return least, most
    groups = codes[unclear].unflatten(-1, (scales.shape[-1], -1))
    counts = (groups & 0x77 != 0).any(-1) | (scales[unclear] > MOST_SCALE)
    known = scales[unclear].int()
    low = known.masked_fill(~counts, e8m0.NAN).amin(-1)
    high = known.masked_fill(~counts, 0).amax(-1)
    empty = ~counts.any(-1)
    least[unclear] = low.masked_fill(empty, e8m0.BIAS).to(torch.uint8)
    most[unclear] = high.masked_fill(empty, e8m0.BIAS).to(torch.uint8)
    return least, most


def fits_bf16(least: Tensor, most: Tensor) -> Tensor:
    """Returns which rows of these bounds are exact in bf16, widened times 2^-32."""
    return (least >= LEAST_SCALE) & (most <= MOST_SCALE)


def fits_e4m3(least: Tensor, most: Tensor) -> Tensor:
    """Returns which rows of these bounds E4M3 represents exactly with one power of two."""
    return fits_bf16(least, most) & (most - least <= MOST_SPAN)
