"""Operands of moe_matmul, its samples, and how a model calls it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.kernels.libraries.orders import OrderedExperts
from firesteel.kernels.op.operands import TiledOperands
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.activation import ACTIVATIONS, FP8
from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Experts, random_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMatmulOperands(TiledOperands):
    """`activation` is what the activations of both matmuls are rounded to, MX formats by the OCP rule.

    fp8 has one scale per token. Experts with a row that spans more than E4M3 (`formats.e2m1_rows`) are left out of
    it: their activations are not rounded.
    """

    x: Tensor  # [T, H]
    ids: Tensor  # [T, A] int64, experts of each token; a negative id adds nothing (padding)
    weights: Tensor  # [T, A] fp32
    experts: Experts | OrderedExperts  # packed weights
    limit: float  # of the clamp
    fed: Fed | None = (
        None  # x as rms_norm_fed stored it for `activation`; else `triton` stores it, to the same bits
    )


def list_samples(device: torch.device) -> Iterator[Sample]:
    """Yields small shapes with every activation."""
    generator = torch.Generator(device).manual_seed(1)
    for tokens, num_experts, hidden, inter, activations in (
        (1, 8, 2880, 2880, ("bf16",)),
        (3, 32, 96, 160, ACTIVATIONS),
        (65, 5, 160, 96, ACTIVATIONS),
    ):
        experts = random_experts(num_experts, hidden, inter, generator)
        x = torch.randn(tokens, hidden, device=device, generator=generator).bfloat16()
        scores = torch.rand(tokens, num_experts, device=device, generator=generator)
        chosen, ids = scores.topk(4)
        operands = MoeMatmulOperands(x=x, ids=ids, weights=chosen.softmax(-1), experts=experts, limit=7.0)
        label = f"T={tokens} E={num_experts} {hidden}x{inter}"
        for activation in activations:
            yield Sample(f"{label} {activation}", (replace(operands, activation=activation),))
        if tokens > 1:
            padded, without = x.clone(), ids.clone()
            padded[-2:], without[-2:] = float("nan"), -1
            yield Sample(f"{label} bf16, 2 of padding", (replace(operands, x=padded, ids=without),))


def list_workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Yields tokens that are spread evenly over the experts at random."""
    spec = shapes.spec

    def draw() -> tuple[MoeMatmulOperands]:
        x = shapes.normal(m, spec.hidden_size)
        ids, weights = shapes.routing(m)
        operands = MoeMatmulOperands(
            x=x,
            ids=ids,
            weights=weights,
            experts=shapes.next_experts(),
            limit=spec.swiglu_limit,
            activation=activation,
            fed=None if activation == FP8 else shapes.fed(x, activation),
        )
        return (operands,)

    flops = 6.0 * m * spec.num_active * spec.hidden_size * spec.intermediate_size
    yield WorkloadPart("", flops, shapes.expert_copies * shapes.experts_bytes, draw)
