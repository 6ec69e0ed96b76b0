"""Matrix product with a dense weight: qkv, o and lm_head.

in   x       [T, N]
     weight  [M, N] bf16
     bias    [M] bf16 or None
out  y       [T, M]   x @ weight.T + bias, in x's type
Accumulated in fp32, rounded once on store.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.kernels.op import Sample, define_op
from firesteel.kernels.tolerance import bf16

ROWS_AT_ONCE = 16384  # bounds the fp32 copy of lm_head's 201088 rows


def _bytes(x: Tensor, weight: Tensor, bias: Tensor | None) -> int:
    bias_bytes = 0 if bias is None else bias.nbytes
    return x.nbytes + weight.nbytes + bias_bytes + x.shape[0] * weight.shape[0] * x.element_size()


@define_op(bytes=_bytes, tolerance=bf16(ulps=1, why="one rounding; fp32 sums in free order"))
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = x.float()
    parts = [functional.linear(wide, rows.float()) for rows in weight.split(ROWS_AT_ONCE)]
    y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    return (y if bias is None else y + bias.float()).to(x.dtype)


@linear.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    for tokens, rows, columns in ((1, 5120, 2880), (3, 2880, 4096), (65, 97, 96)):
        x = torch.randn(tokens, columns, device=device, generator=generator).bfloat16()
        weight = torch.randn(rows, columns, device=device, generator=generator).mul(columns**-0.5).bfloat16()
        bias = torch.randn(rows, device=device, generator=generator).bfloat16()
        yield Sample(f"T={tokens} {rows}x{columns}", (x, weight, bias))
        yield Sample(f"T={tokens} {rows}x{columns} no bias", (x, weight, None))
