"""Shapes at which the decode ops are tested, and random tensors of these shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from firesteel.formats import mxfp4
from firesteel.kernels.op.operands import RoundedOperands
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import Tolerance
from firesteel.kernels.operands.weights import Mxfp4Weight

GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 64
    experts: int
    active: int = 4
    vocabulary: int


GPT_OSS = Sizes(hidden=2880, intermediate=2880, heads=64, kv_heads=8, experts=128, vocabulary=201_088)
KINDLING = Sizes(hidden=256, intermediate=192, heads=8, kv_heads=2, experts=8, vocabulary=4096)


class Case(NamedTuple):
    label: str
    tokens: int
    sizes: Sizes
    draw: Draw


class Draw:
    """Random tensors on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(1)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Draws normal bf16 values."""
        return torch.randn(shape, device=self.device, generator=self.generator).mul_(scale).bfloat16()

    def weight(self, rows: int, columns: int) -> Tensor:
        """Draws a bf16 weight of about unit gain."""
        return self.normal(rows, columns, scale=columns**-0.5)

    def mxfp4_weight(self, rows: int, columns: int) -> Mxfp4Weight:
        """Draws a weight of about unit gain; large ones are drawn as codes, because quantising them is slow."""
        if rows <= 16_384:
            codes, scales = mxfp4.quantize(self.weight(rows, columns).float())
        else:
            codes, scales = self.bytes(0, 256, rows, columns // 2), self.bytes(117, 121, rows, columns // GROUP)
        return Mxfp4Weight(codes=codes, scales=scales)

    def weights(self, rows: int, columns: int) -> Iterator[tuple[str, Tensor | Mxfp4Weight]]:
        yield "bf16-weight", self.weight(rows, columns)
        yield "mxfp4-weight", self.mxfp4_weight(rows, columns)

    def bytes(self, start: int, end: int, *shape: int) -> Tensor:
        return torch.randint(start, end, shape, dtype=torch.uint8, device=self.device, generator=self.generator)

    def permutation(self, count: int) -> Tensor:
        return torch.randperm(count, device=self.device, generator=self.generator)

    def logits(self, tokens: int, experts: int) -> Tensor:
        """Draws [T, E] fp32, a quarter apart within a token, so that rounding cannot change a choice."""
        return torch.stack([self.permutation(experts) for _ in range(tokens)]).float().mul_(0.25)


def rounded_too(
    label: str, held: str, operands: RoundedOperands, tolerance: Tolerance | None = None
) -> Iterator[Sample]:
    """Yields a sample of the operands as they are.

    If an odd number of tokens meets packed weights, a sample with activations in MXFP8 and `tolerance` follows.
    """
    yield Sample(f"{label} {held}", (operands,))
    if held == "mxfp4-weight" and label.endswith(("T=3", "T=5")):
        yield Sample(f"{label} {held} mxfp8", (replace(operands, activation="mxfp8"),), tolerance)


def list_cases(device: torch.device) -> Iterator[Case]:
    """Yields both models at several token counts; on a CPU, where references are slow, gpt-oss is made smaller."""
    real = GPT_OSS if device.type == "cuda" else replace(GPT_OSS, experts=8, vocabulary=4096)
    for name, sizes, counts in (("kindling", KINDLING, (1, 5)), ("gpt-oss", real, (1, 2, 3, 8))):
        for tokens in counts:
            yield Case(f"{name} T={tokens}", tokens, sizes, Draw(device))
