"""The expert MLP of each token: MXFP4 matmul, clamped SwiGLU, MXFP4 matmul, weighted sum.

in   x        [T, H]
     ids      [T, A] int64   experts of each token
     weights  [T, A] fp32
     experts  packed weights (Experts)
     limit    of the clamp
out  y        [T, H]         sum over a of weights[t, a] * mlp(expert ids[t, a], x[t])
     mlp = down @ swiglu(gate_up @ x + bias) + bias; rows of gate_up alternate gate, up
     swiglu = g * sigmoid(1.702 g) * (u + 1)    g = min(gate, limit)    u = clip(up, -limit, limit)
Computed in fp32, rounded once on store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from firesteel.formats import mxfp4
from firesteel.kernels.op import Sample, define_op
from firesteel.kernels.tolerance import bf16

ALPHA = 1.702


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of one layer, values and scales as in the checkpoint."""

    gate_up_codes: Tensor  # [E, 2I, H/2] uint8
    gate_up_scales: Tensor  # [E, 2I, H/32] uint8
    gate_up_bias: Tensor  # [E, 2I] bf16
    down_codes: Tensor  # [E, H, I/2] uint8
    down_scales: Tensor  # [E, H, I/32] uint8
    down_bias: Tensor  # [E, H] bf16

    @property
    def expert_bytes(self) -> int:
        """Of one expert."""
        return sum(int(getattr(self, part.name)[0].nbytes) for part in fields(self))


def swiglu(x: Tensor, limit: float) -> Tensor:
    """[T, I] from [T, 2I], columns alternating gate, up."""
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(ALPHA * gate) * (up + 1)


def _bytes(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float) -> int:
    chosen = int(ids.unique().numel())
    return 2 * x.nbytes + ids.nbytes + weights.nbytes + chosen * experts.expert_bytes


@define_op(bytes=_bytes, tolerance=bf16(ulps=2, why="the value between the matmuls may be rounded to bf16"))
def moe_matmul(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float) -> Tensor:
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    wide = x.float()
    for expert in ids.unique().tolist():
        rows, ranks = (ids == expert).nonzero(as_tuple=True)
        gate_up = mxfp4.dequantize(experts.gate_up_codes[expert], experts.gate_up_scales[expert])
        inner = swiglu(torch.addmm(experts.gate_up_bias[expert].float(), wide[rows], gate_up.T), limit)
        down = mxfp4.dequantize(experts.down_codes[expert], experts.down_scales[expert])
        outer = torch.addmm(experts.down_bias[expert].float(), inner, down.T)
        y.index_add_(0, rows, outer * weights[rows, ranks, None])
    return y.to(x.dtype)


@moe_matmul.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    for tokens, num_experts, hidden, inter in ((1, 8, 2880, 2880), (3, 32, 96, 160), (65, 5, 160, 96)):
        experts = random_experts(num_experts, hidden, inter, generator)
        x = torch.randn(tokens, hidden, device=device, generator=generator).bfloat16()
        scores = torch.rand(tokens, num_experts, device=device, generator=generator)
        chosen, ids = scores.topk(4)
        yield Sample(f"T={tokens} E={num_experts} {hidden}x{inter}", (x, ids, chosen.softmax(-1), experts, 7.0))


def random_experts(num_experts: int, hidden: int, inter: int, generator: torch.Generator) -> Experts:
    """Weights of about unit gain: a random E2M1 code has an rms of 2.93."""

    def matrix(rows: int, columns: int) -> tuple[Tensor, Tensor]:
        shape = (num_experts, rows, columns // 2)
        codes = torch.randint(256, shape, dtype=torch.uint8, generator=generator, device=generator.device)
        exponent = round(127 - torch.tensor(2.93 * columns**0.5).log2().item())
        scales = torch.randint(
            exponent - 1, exponent + 2, (num_experts, rows, columns // 32), dtype=torch.uint8,
            generator=generator, device=generator.device,
        )  # fmt: skip
        return codes, scales

    def bias(rows: int) -> Tensor:
        drawn = torch.randn(num_experts, rows, generator=generator, device=generator.device)
        return drawn.mul(0.1).bfloat16()

    gate_up, down = matrix(2 * inter, hidden), matrix(hidden, inter)
    return Experts(
        gate_up_codes=gate_up[0], gate_up_scales=gate_up[1], gate_up_bias=bias(2 * inter),
        down_codes=down[0], down_scales=down[1], down_bias=bias(hidden),
    )  # fmt: skip
