"""Adds the last layer's update to the residual stream and normalises the sum.

in   residual  [T, H]
     update    [T, H] or None (first norm of the model)
     weight    [H] bf16
out  y         [T, H]   sum / rms(sum) * weight
     sum       [T, H]   residual + update
Computed in fp32, each result rounded once on store.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.kernels.op import Sample, define_op
from firesteel.kernels.tolerance import bf16


def _bytes(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> int:
    return residual.nbytes * (2 if update is None else 4) + weight.nbytes


@define_op(bytes=_bytes, tolerance=bf16(ulps=1, why="one rounding; the order of the sum of squares is free"))
def rms_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = residual.float() if update is None else residual.float() + update.float()
    y = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight.float()
    return y.to(residual.dtype), total.to(residual.dtype)


@rms_norm.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    for tokens, hidden in ((1, 2880), (3, 96), (65, 2880)):
        x, update = torch.randn(2, tokens, hidden, device=device, generator=generator, dtype=torch.bfloat16)
        weight = torch.rand(hidden, device=device, generator=generator).bfloat16()
        yield Sample(f"T={tokens} H={hidden}", (x, update, weight, 1e-5))
        yield Sample(f"T={tokens} H={hidden} first", (x, None, weight, 1e-5))
