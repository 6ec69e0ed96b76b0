"""The expert MLP over sorted pairs: two matmuls on MXFP4 weights and a sum.

A tile is ROWS pairs of one expert times COLUMNS rows of its weight, or only MIDDLE or TAIL pairs if no more are
left. Rows past the expert's end repeat its last pair, or are not read if there may be many, and are not stored.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.target import is_sm90
from firesteel.kernels.tiles.launch import divide_up, launch_kernel
from firesteel.kernels.triton.arithmetic import round_to, widen
from firesteel.kernels.triton.moe_sort import sort_pairs
from firesteel.kernels.triton.mxfp import store_activation
from firesteel.kernels.triton.mxfp4_linear import pin_tile
from firesteel.kernels.triton.mxfp4_product import FEW_ROWS, Tile, multiply

ALPHA = tl.constexpr(1.702)
GROUP = tl.constexpr(32)
NAN = tl.constexpr(tl.PropagateNan.ALL)
SUM_COLUMNS = 1024


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


def run(fed: Fed, ids: Tensor, weights: Tensor, experts: Experts, limit: float, tiles: tuple[Tile, Tile]) -> Tensor:
    """Runs fc1, fc2 and the sum. `tiles` of fc1 and fc2 have the same rows; `inner` is stored as `fed` is."""
    (tokens, hidden), native, device = fed.shape, fed.scales is not None, ids.device
    active, (num_experts, _, half) = ids.shape[1], experts.down_codes.shape
    inter, pairs = 2 * half, ids.numel()
    up, down = tiles
    places = sort_pairs(ids, num_experts, up.rows)
    sorting = (places.order, places.ends, places.tile_experts, places.tile_firsts)
    num_tiles = places.tile_experts.numel()
    inner = Fed.empty((pairs, inter), fed.activation, native, device)
    launch_kernel(
        fc1,
        (divide_up(2 * inter, up.columns), num_tiles),
        fed.values,
        fed.scales,
        *sorting,
        experts.gate_up_codes,
        experts.gate_up_scales,
        experts.gate_up_bias,
        inner.values,
        inner.scales,
        limit,
        A=active,
        H=hidden,
        INTER=inter,
        FORMAT=fed.activation,
        NATIVE=native,
        tile=up,
        **up.constants,
        **up.narrower,
        **up.options,
    )
    parts = torch.empty(pairs, hidden, dtype=torch.bfloat16, device=device)
    launch_kernel(
        fc2,
        (divide_up(hidden, down.columns), num_tiles),
        inner.values,
        inner.scales,
        *sorting,
        experts.down_codes,
        experts.down_scales,
        experts.down_bias,
        weights,
        parts,
        H=hidden,
        INTER=inter,
        STORED=fed.stored,
        tile=down,
        **down.constants,
        **down.narrower,
        **down.options,
    )
    y = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=device)
    launch_kernel(
        sum_parts,
        (tokens, divide_up(hidden, SUM_COLUMNS)),
        parts,
        ids,
        y,
        A=active,
        H=hidden,
        COLUMNS=SUM_COLUMNS,
    )
    return y


# Measured on an H200. Empty rows of a tile cost nearly as much as full ones, and every tile widens its weights
# again: a few empty rows are better than a second tile, and a narrower tail makes that second tile cheaper.
GEMV = Tile(rows=16, columns=128, depth=128, warps=4, stages=4)
GEMV_NARROW = replace(GEMV, columns=64)  # gives every SM work
NARROW_PAIRS = (4, 32)  # for fc1 and fc2; fc2 has half the columns
GEMM = (
    GEMV,
    Tile(rows=32, columns=128, depth=64, warps=4, stages=4, tail=16),
    Tile(rows=64, columns=128, depth=64, warps=4, stages=4, tail=32),
    Tile(rows=128, columns=128, depth=64, warps=8, stages=3, tail=32),  # fits the 100 KB of sm_86, sm_89 and SM12x
)
GEMM_SM90 = (*GEMM[:3], Tile(rows=128, columns=128, depth=64, warps=4, stages=4, tail=32))
NARROWER = {32: (16, 0), 64: (32, 0), 128: (32, 64), 256: (64, 128)}  # tail and middle of pinned tiles, by rows
MOST_PAIRS = (8, 20, 90)  # average pairs per expert, for all tiles but the last


def pin(tiles: tuple[Tile, Tile], tile: str, capability: tuple[int, int] | None) -> tuple[Tile, Tile]:
    """Returns both tiles at size "ROWSxCOLUMNS", shaped as linear's so that they fit; "auto" changes nothing."""
    pinned = pin_tile(tile, capability)
    if pinned is None:
        return tiles
    tail, middle = NARROWER.get(pinned.rows, (0, 0))
    pinned = replace(pinned, tail=tail, middle=middle)
    return pinned, pinned


def gemv_tiles(num_pairs: int) -> tuple[Tile, Tile]:
    up, down = (GEMV_NARROW if num_pairs <= most else GEMV for most in NARROW_PAIRS)
    return up, down


def gemm_tiles(pairs_per_expert: float, capability: tuple[int, int] | None, native: bool) -> tuple[Tile, Tile]:
    tile = (GEMM_SM90 if is_sm90(capability) else GEMM)[bisect_left(MOST_PAIRS, pairs_per_expert)]
    tile = replace(tile, depth=128, stages=3) if native else tile  # one byte per value, or half of one
    return tile, tile
