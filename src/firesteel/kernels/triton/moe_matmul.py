"""The expert MLP over sorted pairs: two matmuls on MXFP4 weights and a sum; knows tiles, no model.

A tile is ROWS pairs of one expert times COLUMNS rows of its weight. Rows of a tile past its expert's end repeat the
last pair and are not stored.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.launch import launch_kernel
from firesteel.kernels.moe_matmul import Experts
from firesteel.kernels.triton.arithmetic import round_to
from firesteel.kernels.triton.moe_sort import sort_pairs
from firesteel.kernels.triton.mxfp import store_activation, store_rows
from firesteel.kernels.triton.mxfp4_product import Activation, Tile, multiply

ALPHA = tl.constexpr(1.702)
GROUP = tl.constexpr(32)
NAN = tl.constexpr(tl.PropagateNan.ALL)
SUM_COLUMNS = 1024
STORE_ROWS, STORE_COLUMNS = 8, 256


@triton.jit
def fc1(
    x, x_scales, order, ends, tile_experts, tile_firsts, codes, scales, bias, inner, inner_scales, limit,
    A: tl.constexpr, H: tl.constexpr, INTER: tl.constexpr, FORMAT: tl.constexpr, NATIVE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """inner [T A, I], in sorted order: SwiGLU of gate_up @ x + bias, in FORMAT."""
    expert = tl.load(tile_experts + tl.program_id(1)).to(tl.int64)
    if expert < 0:
        return
    places = tl.load(tile_firsts + tl.program_id(1)) + tl.arange(0, ROWS)
    end = tl.load(ends + expert)
    tokens = tl.load(order + tl.minimum(places, end - 1)) // A
    first = tl.program_id(0) * COLUMNS
    columns = tl.minimum(first + tl.arange(0, COLUMNS), 2 * INTER - 1)
    STORED: tl.constexpr = FORMAT if NATIVE else "bf16"
    y = multiply(
        codes + expert * (2 * INTER * H // 2), scales + expert * (2 * INTER * H // GROUP), columns,
        x, x_scales, tokens, H, STORED, ROWS, COLUMNS, DEPTH,
    )  # fmt: skip
    y += tl.load(bias + expert * (2 * INTER) + columns).to(tl.float32)[:, None]
    gate, up = tl.split(tl.reshape(tl.trans(y), (ROWS, COLUMNS // 2, 2)))
    gate = tl.minimum(gate, limit, propagate_nan=NAN)
    up = tl.minimum(tl.maximum(up, -limit, propagate_nan=NAN), limit, propagate_nan=NAN)
    mixed = gate / (1 + tl.exp(gate * -ALPHA)) * (up + 1)
    store_activation(mixed, places, places < end, first // 2, inner, inner_scales, INTER, FORMAT, NATIVE)


@triton.jit
def fc2(
    inner, inner_scales, order, ends, tile_experts, tile_firsts, codes, scales, bias, weights, parts,
    H: tl.constexpr, INTER: tl.constexpr, STORED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """parts [T A, H] fp32, by pair: weight times (down @ inner + bias)."""
    expert = tl.load(tile_experts + tl.program_id(1)).to(tl.int64)
    if expert < 0:
        return
    places = tl.load(tile_firsts + tl.program_id(1)) + tl.arange(0, ROWS)
    end = tl.load(ends + expert)
    rows = tl.minimum(places, end - 1)
    wanted = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    columns = tl.minimum(wanted, H - 1)
    y = multiply(
        codes + expert * (H * INTER // 2), scales + expert * (H * INTER // GROUP), columns,
        inner, inner_scales, rows, INTER, STORED, ROWS, COLUMNS, DEPTH,
    )  # fmt: skip
    y = tl.trans(y) + tl.load(bias + expert * H + columns).to(tl.float32)[None, :]
    pairs = tl.load(order + rows)
    y *= tl.load(weights + pairs)[:, None]
    inside = (places < end)[:, None] & (wanted < H)[None, :]
    tl.store(parts + pairs[:, None] * H + wanted[None, :], y, mask=inside)


@triton.jit
def sum_parts(parts, y, A: tl.constexpr, H: tl.constexpr, COLUMNS: tl.constexpr):
    """y [T, H]: each token's parts, added in the order of its ranks."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for rank in tl.static_range(A):
        total += tl.load(parts + (token * A + rank) * H + columns, mask=columns < H, other=0)
    tl.store(y + token * H + columns, round_to(total, tl.bfloat16), mask=columns < H)


def run(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str,
    tiles: tuple[Tile, Tile], native: bool,
) -> Tensor:  # fmt: skip
    """`tiles` of fc1 and fc2, of the same rows. `native` stores quantised activations as codes, else as bf16."""
    tokens, hidden = x.shape
    active, (num_experts, _, half) = ids.shape[1], experts.down_codes.shape
    inter, pairs = 2 * half, ids.numel()
    stored = activation if native else "bf16"
    rows = Activation.empty(tokens, hidden, stored, x.device)
    launch_kernel(
        store_rows, (triton.cdiv(tokens, STORE_ROWS), triton.cdiv(hidden, STORE_COLUMNS)),
        x, rows.values, rows.scales, tokens,
        K=hidden, FORMAT=activation, NATIVE=native, ROWS=STORE_ROWS, COLUMNS=STORE_COLUMNS,
    )  # fmt: skip
    up, down = tiles
    places = sort_pairs(ids, num_experts, up.rows)
    sorting = (places.order, places.ends, places.tile_experts, places.tile_firsts)
    num_tiles = places.tile_experts.numel()
    inner = Activation.empty(pairs, inter, stored, x.device)
    launch_kernel(
        fc1, (triton.cdiv(2 * inter, up.columns), num_tiles),
        rows.values, rows.scales, *sorting, experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias,
        inner.values, inner.scales, limit,
        A=active, H=hidden, INTER=inter, FORMAT=activation, NATIVE=native, tile=up, **up.constants, **up.options,
    )  # fmt: skip
    parts = torch.empty(pairs, hidden, dtype=torch.float32, device=x.device)
    launch_kernel(
        fc2, (triton.cdiv(hidden, down.columns), num_tiles),
        inner.values, inner.scales, *sorting, experts.down_codes, experts.down_scales, experts.down_bias,
        weights, parts, H=hidden, INTER=inter, STORED=stored, tile=down, **down.constants, **down.options,
    )  # fmt: skip
    y = torch.empty_like(x)
    launch_kernel(
        sum_parts, (tokens, triton.cdiv(hidden, SUM_COLUMNS)), parts, y, A=active, H=hidden, COLUMNS=SUM_COLUMNS
    )
    return y


# Chosen by counting instructions and bytes, not yet measured. 256 columns halve how often a token's row is read; 32
# give every SM some of fc2 when there are four pairs.
GEMV = Tile(rows=16, columns=64, depth=128, warps=4, stages=4)
GEMV_NARROW = Tile(rows=16, columns=32, depth=128, warps=2, stages=4)
NARROW_PAIRS = 8
GEMM = (
    Tile(rows=32, columns=128, depth=64, warps=4, stages=4),
    Tile(rows=64, columns=128, depth=64, warps=4, stages=4),
    Tile(rows=128, columns=128, depth=64, warps=8, stages=3),  # fits the 100 KB of sm_86, sm_89 and SM12x
)
GEMM_SM90 = (*GEMM[:2], Tile(rows=128, columns=256, depth=64, warps=8, stages=4))


def pin(tiles: tuple[Tile, Tile], tile: str) -> tuple[Tile, Tile]:
    """Both tiles with the rows and columns of "ROWSxCOLUMNS", or as they are for "auto"."""
    if tile == "auto":
        return tiles
    rows, columns = map(int, tile.split("x"))
    up, down = (replace(one, rows=rows, columns=columns) for one in tiles)
    return up, down


def gemv_tiles(num_pairs: int) -> tuple[Tile, Tile]:
    return GEMV, GEMV_NARROW if num_pairs <= NARROW_PAIRS else GEMV


def gemm_tiles(pairs_per_expert: float, is_sm90: bool, native: bool) -> tuple[Tile, Tile]:
    """The smallest tile that holds the pairs of most experts, whose number varies by about its square root."""
    tiles = GEMM_SM90 if is_sm90 else GEMM
    tile = next((tile for tile in tiles if pairs_per_expert * 1.25 <= tile.rows), tiles[-1])
    tile = replace(tile, depth=128, stages=3) if native else tile  # one byte a value, or half of one
    return tile, tile
