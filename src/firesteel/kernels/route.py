"""Chooses the experts of each token and their weights.

in   x        [T, H]
     weight   [E, H] bf16
     bias     [E] bf16
     active   experts per token, A
out  ids      [T, A] int64   largest logit first
     weights  [T, A] fp32    softmax over the chosen logits only
Computed in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.kernels.op import Sample, define_op
from firesteel.kernels.tolerance import fp32


def _bytes(x: Tensor, weight: Tensor, bias: Tensor, active: int) -> int:
    return x.nbytes + weight.nbytes + bias.nbytes + x.shape[0] * active * 12


@define_op(
    bytes=_bytes,
    tolerance=fp32(worst=1e-4, rms=1e-5, why="fp32 sums in free order; samples have no near ties"),
)
def route(x: Tensor, weight: Tensor, bias: Tensor, active: int) -> tuple[Tensor, Tensor]:
    logits = x.float() @ weight.float().T + bias.float()
    chosen, ids = logits.topk(active, dim=-1)
    return ids, chosen.softmax(dim=-1)


@route.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """Logits of a token lie half a unit apart at least, so that rounding cannot change the choice."""
    generator = torch.Generator(device).manual_seed(1)
    for tokens, experts in ((1, 128), (3, 32), (65, 128)):
        x = torch.zeros(tokens, 2880, device=device)
        for row in x:
            row[:experts] = torch.randperm(experts, device=device, generator=generator) - experts / 2
        weight = torch.eye(experts, 2880, device=device).bfloat16()
        bias = torch.rand(experts, device=device, generator=generator).mul(0.4).bfloat16()
        yield Sample(f"T={tokens} E={experts}", (x.bfloat16(), weight, bias, 4))
