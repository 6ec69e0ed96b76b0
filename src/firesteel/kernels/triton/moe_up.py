"""Device code of fc1: the first matmul of the experts over sorted pairs, and SwiGLU.

A tile is ROWS pairs of one expert times COLUMNS rows of its weight, or only MIDDLE or TAIL pairs if no more are
left. Rows past the expert's end repeat its last pair, or are not read if there may be many, and are not stored.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from firesteel.kernels.triton.mxfp import store_activation
from firesteel.kernels.triton.mxfp4_product import FEW_ROWS, multiply

ALPHA = tl.constexpr(1.702)
GROUP = tl.constexpr(32)
NAN = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def fc1(
    x,
    x_scales,
    order,
    ends,
    tile_experts,
    tile_firsts,
    codes,
    scales,
    bias,
    inner,
    inner_scales,
    limit,
    A: tl.constexpr,
    H: tl.constexpr,
    INTER: tl.constexpr,
    FORMAT: tl.constexpr,
    NATIVE: tl.constexpr,
    ROWS: tl.constexpr,
    MIDDLE: tl.constexpr,
    TAIL: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Writes inner [T A, I], in sorted order: SwiGLU of gate_up @ x + bias, in FORMAT.

    x [T, H] is stored once per token; the load gathers each pair's row.
    """
    expert = tl.load(tile_experts + tl.program_id(1)).to(tl.int64)
    if expert < 0:
        return
    first_place = tl.load(tile_firsts + tl.program_id(1))
    end = tl.load(ends + expert)
    codes += expert * (2 * INTER * H // 2)
    scales += expert * (2 * INTER * H // GROUP)
    bias += expert * (2 * INTER)
    left = end - first_place
    if left > MIDDLE:
        fc1_tile(
            x,
            x_scales,
            order,
            codes,
            scales,
            bias,
            inner,
            inner_scales,
            limit,
            first_place,
            end,
            A,
            H,
            INTER,
            FORMAT,
            NATIVE,
            ROWS,
            COLUMNS,
            DEPTH,
        )
    elif MIDDLE > TAIL:
        if left > TAIL:
            fc1_tile(
                x,
                x_scales,
                order,
                codes,
                scales,
                bias,
                inner,
                inner_scales,
                limit,
                first_place,
                end,
                A,
                H,
                INTER,
                FORMAT,
                NATIVE,
                MIDDLE,
                COLUMNS,
                DEPTH,
            )
        else:
            fc1_tile(
                x,
                x_scales,
                order,
                codes,
                scales,
                bias,
                inner,
                inner_scales,
                limit,
                first_place,
                end,
                A,
                H,
                INTER,
                FORMAT,
                NATIVE,
                TAIL,
                COLUMNS,
                DEPTH,
            )
    elif TAIL > 0:
        fc1_tile(
            x,
            x_scales,
            order,
            codes,
            scales,
            bias,
            inner,
            inner_scales,
            limit,
            first_place,
            end,
            A,
            H,
            INTER,
            FORMAT,
            NATIVE,
            TAIL,
            COLUMNS,
            DEPTH,
        )


@triton.jit
def fc1_tile(
    x,
    x_scales,
    order,
    codes,
    scales,
    bias,
    inner,
    inner_scales,
    limit,
    first_place,
    end,
    A: tl.constexpr,
    H: tl.constexpr,
    INTER: tl.constexpr,
    FORMAT: tl.constexpr,
    NATIVE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Multiplies 8 gates, then their 8 ups, and so on: the MMA leaves rows 8 apart in the same lane."""
    places = first_place + tl.arange(0, ROWS)
    tokens = tl.load(order + tl.minimum(places, end - 1)) // A
    first = tl.program_id(0) * COLUMNS
    row = tl.arange(0, COLUMNS)
    columns = tl.minimum(first + row // 16 * 16 + row % 8 * 2 + row // 8 % 2, 2 * INTER - 1)
    STORED: tl.constexpr = FORMAT if NATIVE else "bf16"
    is_row = places < end if ROWS <= FEW_ROWS else None
    y = multiply(codes, scales, columns, x, x_scales, tokens, H, STORED, ROWS, COLUMNS, DEPTH, is_row)
    y += tl.load(bias + columns).to(tl.float32)[:, None]
    y = tl.permute(tl.reshape(y, (COLUMNS // 16, 2, 8, ROWS)), (0, 2, 3, 1))
    gate, up = tl.split(y)
    gate = tl.minimum(gate, limit, propagate_nan=NAN)
    up = tl.minimum(tl.maximum(up, -limit, propagate_nan=NAN), limit, propagate_nan=NAN)
    mixed = tl.trans(tl.reshape(gate / (1 + tl.exp(gate * -ALPHA)) * (up + 1), (COLUMNS // 2, ROWS)))
    store_activation(mixed, places, places < end, first // 2, inner, inner_scales, INTER, FORMAT, NATIVE)
