"""Device code of fc2: the second matmul of the experts over sorted pairs, and the sum over a token's experts.

A tile is ROWS pairs of one expert times COLUMNS rows of its weight, or only MIDDLE or TAIL pairs if no more are
left. Rows past the expert's end repeat its last pair, or are not read if there may be many, and are not stored.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from firesteel.kernels.triton.arithmetic import round_to, widen
from firesteel.kernels.triton.mxfp4_product import FEW_ROWS, multiply

GROUP = tl.constexpr(32)
SUM_COLUMNS = 1024


@triton.jit
def fc2(
    inner,
    inner_scales,
    order,
    ends,
    tile_experts,
    tile_firsts,
    codes,
    scales,
    bias,
    weights,
    parts,
    H: tl.constexpr,
    INTER: tl.constexpr,
    STORED: tl.constexpr,
    ROWS: tl.constexpr,
    MIDDLE: tl.constexpr,
    TAIL: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Writes parts [T A, H], by pair: weight * (down @ inner + bias), rounded, which halves the bytes moved."""
    expert = tl.load(tile_experts + tl.program_id(1)).to(tl.int64)
    if expert < 0:
        return
    first_place = tl.load(tile_firsts + tl.program_id(1))
    end = tl.load(ends + expert)
    codes += expert * (H * INTER // 2)
    scales += expert * (H * INTER // GROUP)
    bias += expert * H
    left = end - first_place
    if left > MIDDLE:
        fc2_tile(
            inner,
            inner_scales,
            order,
            codes,
            scales,
            bias,
            weights,
            parts,
            first_place,
            end,
            H,
            INTER,
            STORED,
            ROWS,
            COLUMNS,
            DEPTH,
        )
    elif MIDDLE > TAIL:
        if left > TAIL:
            fc2_tile(
                inner,
                inner_scales,
                order,
                codes,
                scales,
                bias,
                weights,
                parts,
                first_place,
                end,
                H,
                INTER,
                STORED,
                MIDDLE,
                COLUMNS,
                DEPTH,
            )
        else:
            fc2_tile(
                inner,
                inner_scales,
                order,
                codes,
                scales,
                bias,
                weights,
                parts,
                first_place,
                end,
                H,
                INTER,
                STORED,
                TAIL,
                COLUMNS,
                DEPTH,
            )
    elif TAIL > 0:
        fc2_tile(
            inner,
            inner_scales,
            order,
            codes,
            scales,
            bias,
            weights,
            parts,
            first_place,
            end,
            H,
            INTER,
            STORED,
            TAIL,
            COLUMNS,
            DEPTH,
        )


@triton.jit
def fc2_tile(
    inner,
    inner_scales,
    order,
    codes,
    scales,
    bias,
    weights,
    parts,
    first_place,
    end,
    H: tl.constexpr,
    INTER: tl.constexpr,
    STORED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    places = first_place + tl.arange(0, ROWS)
    rows = tl.minimum(places, end - 1)
    wanted = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    columns = tl.minimum(wanted, H - 1)
    is_row = places < end if ROWS <= FEW_ROWS else None
    y = multiply(codes, scales, columns, inner, inner_scales, rows, INTER, STORED, ROWS, COLUMNS, DEPTH, is_row)
    y = tl.trans(y) + tl.load(bias + columns).to(tl.float32)[None, :]
    pairs = tl.load(order + rows)
    y *= tl.load(weights + pairs)[:, None]
    inside = (places < end)[:, None] & (wanted < H)[None, :]
    tl.store(parts + pairs[:, None] * H + wanted[None, :], round_to(y, tl.bfloat16), mask=inside)


@triton.jit
def sum_parts(parts, ids, y, A: tl.constexpr, H: tl.constexpr, COLUMNS: tl.constexpr):
    """Writes y [T, H]: each token's parts, added in the order of its ranks; pairs without an expert have none."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for rank in tl.static_range(A):
        end = tl.where(tl.load(ids + token * A + rank) >= 0, H, 0)
        total += widen(tl.load(parts + (token * A + rank) * H + columns, mask=columns < end, other=0))
    tl.store(y + token * H + columns, round_to(total, tl.bfloat16), mask=columns < H)
