"""The expert MLP over sorted pairs: two matmuls on MXFP4 weights and a sum; knows tiles, no model.

A tile is ROWS pairs of one expert times COLUMNS rows of its weight. The weight is the left operand of the product:
on Hopper it goes from the registers in which it was widened straight into the matrix unit, and few pairs waste
little of it. Weights are read as 4 bits; their scales, too narrow for asynchronous copies, one step ahead. Rows of
a tile past its expert's end repeat the last pair and are not stored.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.moe_matmul import Experts
from firesteel.kernels.triton.arithmetic import dot, round_to
from firesteel.kernels.triton.moe_sort import sort_pairs
from firesteel.kernels.triton.mxfp import mxfp4_to_bf16, mxfp4_to_mxfp8, store_activation, store_rows

ALPHA = tl.constexpr(1.702)
GROUP = tl.constexpr(32)
NAN = tl.constexpr(tl.PropagateNan.ALL)
SUM_COLUMNS = 1024
STORE_ROWS, STORE_COLUMNS = 8, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    rows: int  # pairs
    columns: int  # rows of the weight
    depth: int  # values of K a step
    warps: int
    stages: int

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
    store_rows[triton.cdiv(tokens, STORE_ROWS), triton.cdiv(hidden, STORE_COLUMNS)](
        x, rows.values, rows.scales, tokens,
        K=hidden, FORMAT=activation, NATIVE=native, ROWS=STORE_ROWS, COLUMNS=STORE_COLUMNS,
    )  # fmt: skip
    up, down = tiles
    places = sort_pairs(ids, num_experts, up.rows)
    sorting = (places.order, places.ends, places.tile_experts, places.tile_firsts)
    num_tiles = places.tile_experts.numel()
    inner = Activation.empty(pairs, inter, stored, x.device)
    fc1[triton.cdiv(2 * inter, up.columns), num_tiles](
        rows.values, rows.scales, *sorting, experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias,
        inner.values, inner.scales, limit,
        A=active, H=hidden, INTER=inter, FORMAT=activation, NATIVE=native, **up.constants, **up.options,
    )  # fmt: skip
    parts = torch.empty(pairs, hidden, dtype=torch.float32, device=x.device)
    fc2[triton.cdiv(hidden, down.columns), num_tiles](
        inner.values, inner.scales, *sorting, experts.down_codes, experts.down_scales, experts.down_bias,
        weights, parts, H=hidden, INTER=inter, STORED=stored, **down.constants, **down.options,
    )  # fmt: skip
    y = torch.empty_like(x)
    sum_parts[tokens, triton.cdiv(hidden, SUM_COLUMNS)](parts, y, A=active, H=hidden, COLUMNS=SUM_COLUMNS)
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


def gemv_tiles(num_pairs: int) -> tuple[Tile, Tile]:
    return GEMV, GEMV_NARROW if num_pairs <= NARROW_PAIRS else GEMV


def gemm_tiles(pairs_per_expert: float, is_sm90: bool, native: bool) -> tuple[Tile, Tile]:
    """The smallest tile that holds the pairs of most experts, whose number varies by about its square root."""
    tiles = GEMM_SM90 if is_sm90 else GEMM
    tile = next((tile for tile in tiles if pairs_per_expert * 1.25 <= tile.rows), tiles[-1])
    tile = replace(tile, depth=128, stages=3) if native else tile  # one byte a value, or half of one
    return tile, tile
