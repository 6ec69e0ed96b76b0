"""Operands of linear, its samples, and how a model calls it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.formats import mxfp4
from firesteel.kernels.libraries.flashinfer_linear import FlashinferWeight
from firesteel.kernels.op.operands import TiledOperands
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.operands.shapes import MOST_DECODED, ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Mxfp4Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearOperands(TiledOperands):
    """`activation` (what x is rounded to) and `tile` apply to MXFP4 weights only."""

    x: Tensor  # [T, N]
    weight: Tensor | Mxfp4Weight | FlashinferWeight  # [M, N] bf16 or MXFP4
    bias: Tensor | None = None  # [M] bf16
    fed: Fed | None = (
        None  # x as rms_norm_fed stored it for an MXFP4 weight; else `triton` stores it, to the same bits
    )


def list_samples(device: torch.device) -> Iterator[Sample]:
    """Yields small shapes of bf16 and MXFP4 weights."""
    generator = torch.Generator(device).manual_seed(1)
    for (tokens, rows, columns), activation in zip(
        ((1, 5120, 2880), (3, 2880, 4096), (65, 100, 96), (2, 68, 160), (131, 72, 128)),
        (*ACTIVATIONS, "mxfp8", "bf16"),
        strict=True,
    ):
        x = torch.randn(tokens, columns, device=device, generator=generator).bfloat16()
        wide = torch.randn(rows, columns, device=device, generator=generator).mul(columns**-0.5)
        bias = torch.randn(rows, device=device, generator=generator).bfloat16()
        operands = LinearOperands(x=x, weight=wide.bfloat16(), bias=bias)
        yield Sample(f"T={tokens} {rows}x{columns}", (operands,))
        yield Sample(f"T={tokens} {rows}x{columns} no bias", (replace(operands, bias=None),))
        codes, scales = mxfp4.quantize(wide)
        packed = replace(operands, weight=Mxfp4Weight(codes=codes, scales=scales), activation=activation)
        yield Sample(f"T={tokens} {rows}x{columns} mxfp4-weight {activation}", (packed,))


def list_workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Yields qkv, o and lm_head; lm_head computes one row per request, so it stops where decoding stops."""
    spec = shapes.spec
    layers = {
        "qkv": (spec.q_size + 2 * spec.kv_size, spec.hidden_size),
        "o": (spec.hidden_size, spec.q_size),
        "lm_head": (spec.vocab_size, spec.hidden_size),
    }

    def draw(name: str, is_fp4: bool) -> tuple[LinearOperands]:
        rows, columns = layers[name]
        x = shapes.normal(m, columns)
        operands = LinearOperands(
            x=x,
            weight=shapes.mxfp4_weight(rows, columns) if is_fp4 else shapes.weight(rows, columns),
            bias=None if name == "lm_head" else shapes.bias(rows),
            activation=activation,
            fed=shapes.fed(x, activation) if name == "qkv" and is_fp4 else None,
        )
        return (operands,)

    for name, (rows, columns) in layers.items():
        if name == "lm_head" and m > MOST_DECODED:
            continue
        for held in ("bf16", "mxfp4") if activation == "bf16" else ("mxfp4",):
            draw_layer = functools.partial(draw, name, held == "mxfp4")
            yield WorkloadPart(f"{name} {held}", 2.0 * m * rows * columns, 2 * rows * columns, draw_layer)
