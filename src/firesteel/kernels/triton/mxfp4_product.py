"""Multiplies one tile of an MXFP4 weight by activations.

The weight is the left operand: on Hopper it goes from the registers where it was widened straight to the matrix
unit, and few rows of activations waste little of it. Weights are read as 4 bits.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.tiles.launch import divide_up, launch_kernel
from firesteel.kernels.triton.arithmetic import INTERPRETED, dot
from firesteel.kernels.triton.mxfp import (
    WIDENED_SHIFT,
    e8m0_to_factors,
    mxfp4_to_bf16,
    mxfp4_to_mxfp8,
    store_rows,
)

GROUP = tl.constexpr(32)
STORE_ROWS, STORE_COLUMNS = 8, 256
THREE_BYTES = tl.constexpr(0xFFFFFF)
FEW_ROWS = tl.constexpr(32)  # tiles up to this size may be mostly empty: masking the loads saves more than it costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    rows: int  # rows of activations
    columns: int  # rows of the weight
    depth: int  # values of K per step
    warps: int
    stages: int
    tail: int = 0  # rows of the narrowest tile, used if no more are left; 0: there is only one tile
    middle: int = 0  # rows of a tile between the two; 0: none

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}"

    @property
    def constants(self) -> dict[str, int]:
        return {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth}

    @property
    def narrower(self) -> dict[str, int]:
        """Constants of kernels with narrower tiles; MIDDLE equals TAIL if there is no middle tile."""
        return {"TAIL": self.tail, "MIDDLE": self.middle or self.tail}

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


@triton.jit
def load_columns(at, columns, limit, is_row, EVEN: tl.constexpr):
    if is_row is not None:
        return tl.load(at, mask=is_row[:, None] & (columns < limit)[None, :], other=0)
    elif EVEN:  # noqa: RET505  (Triton compiles one of them: all must end the function)
        return tl.load(at)
    else:
        return tl.load(at, mask=(columns < limit)[None, :], other=0)


@triton.jit
def load_scales(scales, rows, first, K: tl.constexpr, DEPTH: tl.constexpr):
    """Loads scales [N, DEPTH/32] of the groups from column `first` on; 0 past the end."""
    groups = first // GROUP + tl.arange(0, DEPTH // GROUP)
    at = scales + rows[:, None] * (K // GROUP) + groups[None, :]
    return tl.load(at, mask=(groups < K // GROUP)[None, :], other=0)


@triton.jit
def shift_pair(low, high, shift):
    """Shifts the 64 bits of `high` and `low` right by 0 to 31 and returns the low 32 bits (funnel shift)."""
    if INTERPRETED:
        return (low >> shift) | tl.where(shift > 0, high << (32 - shift), 0)
    else:  # noqa: RET505
        return tl.inline_asm_elementwise(
            "shf.r.wrap.b32 $0, $1, $2, $3;", "=r,r,r,r", [low, high, shift], tl.uint32, is_pure=True, pack=1
        )


@triton.jit
def load_four_scales(scales, rows, first, K: tl.constexpr, GROUPS: tl.constexpr, EVEN: tl.constexpr):
    """Loads [N] uint32: the scales of GROUPS groups (2 or 4) from column `first` on; 0 past the row's end.

    A row may start at any byte; only aligned words can be copied asynchronously.
    """
    begin = rows * (K // GROUP) + first // GROUP
    end = (rows + 1) * (K // GROUP)
    shift = begin % 4 * 8 if GROUPS < 4 else rows * (K // GROUP) % 4 * 8
    words = scales.to(tl.pointer_type(tl.uint32)) + begin // 4
    if K // GROUP % GROUPS == 0:
        return (tl.load(words) if EVEN else tl.load(words, mask=begin < end, other=0)) >> shift
    else:  # noqa: RET505
        second = tl.arange(0, 2)[None, :]
        is_needed = (begin // 4 * 4)[:, None] + second * 4 < end[:, None]
        low, high = tl.split(tl.load(words[:, None] + second, mask=is_needed, other=0))
        LAST: tl.constexpr = THREE_BYTES >> ((3 - K // GROUP % GROUPS) * 8)  # mask of the last step
        keep = tl.where(first + GROUPS * GROUP > K, LAST, -1).to(tl.uint32, bitcast=True)
        return shift_pair(low, high, shift) & keep


@triton.jit
def load_factors(scales, rows, first, K: tl.constexpr, DEPTH: tl.constexpr):
    """Loads factors [N, DEPTH/32] bf16, see e8m0_to_factors. DEPTH is 64, 128 or 256."""
    EVEN: tl.constexpr = K % DEPTH == 0
    if DEPTH <= 128:
        found = load_four_scales(scales, rows, first, K, DEPTH // GROUP, EVEN)
        return e8m0_to_factors(found, DEPTH // GROUP)
    else:  # noqa: RET505
        near = e8m0_to_factors(load_four_scales(scales, rows, first, K, 4, EVEN), 4)
        far = e8m0_to_factors(load_four_scales(scales, rows, first + 128, K, 4, EVEN), 4)
        return tl.reshape(tl.permute(tl.join(near, far), (0, 2, 1)), (near.shape[0], 8))


@triton.jit
def multiply(
    codes,
    scales,
    columns,
    x,
    x_scales,
    rows,
    K: tl.constexpr,
    STORED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    is_row=None,
):
    """Returns [COLUMNS, ROWS] fp32: `columns` of the weight times `rows` of x, stored as bf16, mxfp8 or mxfp4.

    Rows for which `is_row` is false are not read and give 0.
    """
    if STORED == "bf16":
        return multiply_bf16(codes, scales, columns, x, rows, is_row, K, ROWS, COLUMNS, DEPTH)
    else:  # noqa: RET505
        return multiply_scaled(codes, scales, columns, x, x_scales, rows, is_row, K, STORED, ROWS, COLUMNS, DEPTH)


@triton.jit
def multiply_bf16(
    codes,
    scales,
    columns,
    x,
    rows,
    is_row,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    EVEN: tl.constexpr = K % DEPTH == 0
    word = tl.arange(0, DEPTH // 8)
    inner = tl.arange(0, DEPTH)
    words_at = codes.to(tl.pointer_type(tl.uint32)) + columns[:, None] * (K // 8) + word[None, :]
    x_at = x + rows[:, None] * K + inner[None, :]
    accumulator = tl.zeros([COLUMNS, ROWS], tl.float32)
    for first in range(0, K, DEPTH):
        words = load_columns(words_at + first // 8, first // 8 + word, K // 8, None, EVEN)
        tokens = load_columns(x_at + first, first + inner, K, is_row, EVEN)
        factors = load_factors(scales, columns, first, K, DEPTH)
        accumulator = dot(mxfp4_to_bf16(words, factors), tl.trans(tokens), accumulator)
    return accumulator * 2.0**WIDENED_SHIFT


@triton.jit
def multiply_scaled(
    codes,
    scales,
    columns,
    x,
    x_scales,
    rows,
    is_row,
    K: tl.constexpr,
    STORED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    EVEN: tl.constexpr = K % DEPTH == 0
    PER_BYTE: tl.constexpr = 2 if STORED == "mxfp4" else 1
    half = tl.arange(0, DEPTH // 2)
    inner = tl.arange(0, DEPTH // PER_BYTE)
    codes_at = codes + columns[:, None] * (K // 2) + half[None, :]
    x_at = x + rows[:, None] * (K // PER_BYTE) + inner[None, :]
    accumulator = tl.zeros([COLUMNS, ROWS], tl.float32)
    next_scale = load_scales(scales, columns, 0, K, DEPTH)
    next_x_scale = load_scales(x_scales, rows, 0, K, DEPTH)
    for first in range(0, K, DEPTH):
        w = load_columns(codes_at + first // 2, first // 2 + half, K // 2, None, EVEN)
        tokens = load_columns(x_at + first // PER_BYTE, first // PER_BYTE + inner, K // PER_BYTE, is_row, EVEN)
        scale, x_scale = next_scale, next_x_scale
        next_scale = load_scales(scales, columns, first + DEPTH, K, DEPTH)
        next_x_scale = load_scales(x_scales, rows, first + DEPTH, K, DEPTH)
        if STORED == "mxfp8":
            w, scale = mxfp4_to_mxfp8(w, scale)
            tokens = tl.trans(tokens.to(tl.float8e4nv, bitcast=True))
            accumulator = tl.dot_scaled(w, scale, "e4m3", tokens, x_scale, "e4m3", accumulator)
        else:
            accumulator = tl.dot_scaled(w, scale, "e2m1", tl.trans(tokens), x_scale, "e2m1", accumulator)
    return accumulator


def store(x: Tensor, activation: str, native: bool) -> Fed:
    """Stores the rows of x in the order that `multiply` needs, if their producer has not done so."""
    tokens, columns = x.shape
    fed = Fed.empty(x.shape, activation, native, x.device)
    launch_kernel(
        store_rows,
        (divide_up(tokens, STORE_ROWS), divide_up(columns, STORE_COLUMNS)),
        x,
        fed.values,
        fed.scales,
        tokens,
        K=columns,
        FORMAT=activation,
        NATIVE=native,
        ROWS=STORE_ROWS,
        COLUMNS=STORE_COLUMNS,
    )
    return fed
