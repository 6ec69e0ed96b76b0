"""A tile of the product of an MXFP4 weight with activations; knows no experts and no layers.

The weight is the left operand: on Hopper it goes from the registers in which it was widened straight into the
matrix unit, and few rows of activations waste little of it. Weights are read as 4 bits; their scales, too narrow
for asynchronous copies, one step ahead.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.triton.arithmetic import dot
from firesteel.kernels.triton.mxfp import mxfp4_to_bf16, mxfp4_to_mxfp8

GROUP = tl.constexpr(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    rows: int  # of activations
    columns: int  # rows of the weight
    depth: int  # values of K a step
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}"

    @property
    def constants(self) -> dict[str, int]:
        return {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth}

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


@triton.jit
def load_columns(at, columns, limit, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(at)
    else:  # noqa: RET505  (Triton compiles one of the two: both must end the function)
        return tl.load(at, mask=(columns < limit)[None, :], other=0)


@triton.jit
def load_scales(scales, rows, first, K: tl.constexpr, DEPTH: tl.constexpr):
    """[N, DEPTH/32] of the groups from column `first` on; 0 past the end."""
    groups = first // GROUP + tl.arange(0, DEPTH // GROUP)
    at = scales + rows[:, None] * (K // GROUP) + groups[None, :]
    return tl.load(at, mask=(groups < K // GROUP)[None, :], other=0)


@triton.jit
def multiply(
    codes, scales, columns, x, x_scales, rows,
    K: tl.constexpr, STORED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """[COLUMNS, ROWS] fp32: the `columns` of the weight times the `rows` of x, stored as bf16, mxfp8 or mxfp4."""
    EVEN: tl.constexpr = K % DEPTH == 0
    PER_BYTE: tl.constexpr = 2 if STORED == "mxfp4" else 1
    half = tl.arange(0, DEPTH // 2)
    inner = tl.arange(0, DEPTH // PER_BYTE)
    codes_at = codes + columns[:, None] * (K // 2) + half[None, :]
    x_at = x + rows[:, None] * (K // PER_BYTE) + inner[None, :]
    accumulator = tl.zeros([COLUMNS, ROWS], tl.float32)
    next_scale = load_scales(scales, columns, 0, K, DEPTH)
    if STORED != "bf16":
        next_x_scale = load_scales(x_scales, rows, 0, K, DEPTH)
    for first in range(0, K, DEPTH):
        w = load_columns(codes_at + first // 2, first // 2 + half, K // 2, EVEN)
        tokens = load_columns(x_at + first // PER_BYTE, first // PER_BYTE + inner, K // PER_BYTE, EVEN)
        scale = next_scale
        next_scale = load_scales(scales, columns, first + DEPTH, K, DEPTH)
        if STORED == "bf16":
            accumulator = dot(mxfp4_to_bf16(w, scale), tl.trans(tokens), accumulator)
        else:
            x_scale = next_x_scale
            next_x_scale = load_scales(x_scales, rows, first + DEPTH, K, DEPTH)
            if STORED == "mxfp8":
                w, scale = mxfp4_to_mxfp8(w, scale)
                tokens = tl.trans(tokens.to(tl.float8e4nv, bitcast=True))
                accumulator = tl.dot_scaled(w, scale, "e4m3", tokens, x_scale, "e4m3", accumulator)
            else:
                accumulator = tl.dot_scaled(w, scale, "e2m1", tl.trans(tokens), x_scale, "e2m1", accumulator)
    return accumulator


@dataclass(frozen=True, slots=True)
class Activation:
    """Rows of K values: bf16 without scales, or codes with them."""

    values: Tensor
    scales: Tensor | None

    @classmethod
    def empty(cls, rows: int, columns: int, stored: str, device: torch.device) -> Activation:
        if stored == "bf16":
            return cls(torch.empty(rows, columns, dtype=torch.bfloat16, device=device), None)
        width = columns // 2 if stored == "mxfp4" else columns
        values = torch.empty(rows, width, dtype=torch.uint8, device=device)
        return cls(values, torch.empty(rows, columns // GROUP.value, dtype=torch.uint8, device=device))
