"""Device code of linear on MXFP4 weights; x is stored in the order of the product.

A tile is ROWS tokens times COLUMNS rows of the weight. Those past the end repeat the last one, or are not read
if a tile has few tokens, and are not stored. No sum is split over programs: the same inputs give the same bits.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.target import is_sm90
from firesteel.kernels.tiles.launch import divide_up, launch_kernel
from firesteel.kernels.tiles.tile_pin import parse_tile
from firesteel.kernels.triton.arithmetic import round_to, widen
from firesteel.kernels.triton.mxfp4_product import FEW_ROWS, Tile, multiply

GROUP = tl.constexpr(32)
TILES_ACROSS = tl.constexpr(8)


@triton.jit(do_not_specialize=["num_tokens"])
def mxfp4_linear_kernel(
    x,
    x_scales,
    codes,
    scales,
    bias,
    y,
    num_tokens,
    M: tl.constexpr,
    K: tl.constexpr,
    STORED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Writes y [T, M] from x [T, K] stored as bf16, mxfp8 or mxfp4. Offsets of whole tiles are 64-bit."""
    row_tile, column_tile = place_tile(tl.program_id(0), tl.cdiv(num_tokens, ROWS), tl.cdiv(M, COLUMNS))
    first_row, first_column = row_tile.to(tl.int64) * ROWS, column_tile.to(tl.int64) * COLUMNS
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    last_row, last_column = num_tokens - 1 - row_tile * ROWS, M - 1 - column_tile * COLUMNS
    PER_BYTE: tl.constexpr = 2 if STORED == "mxfp4" else 1
    if STORED != "bf16":
        x_scales += first_row * (K // GROUP)
    near = tl.minimum(columns, last_column)
    is_row = rows <= last_row if ROWS <= FEW_ROWS else None
    product = multiply(
        codes + first_column * (K // 2),
        scales + first_column * (K // GROUP),
        near,
        x + first_row * (K // PER_BYTE),
        x_scales,
        tl.minimum(rows, last_row),
        K,
        STORED,
        ROWS,
        COLUMNS,
        DEPTH,
        is_row,
    )
    if bias is not None:
        product += widen(tl.load(bias + first_column + near))[:, None]
    inside = (rows <= last_row)[:, None] & (columns <= last_column)[None, :]
    target = y + first_row * M + first_column + rows[:, None] * M + columns[None, :]
    tl.store(target, round_to(tl.trans(product), tl.bfloat16), mask=inside)


@triton.jit
def place_tile(number, row_tiles, column_tiles):
    """Returns (row, column) of a tile. Bands of TILES_ACROSS columns make concurrent programs share operands."""
    first = number // (row_tiles * TILES_ACROSS) * TILES_ACROSS
    across = tl.minimum(column_tiles - first, TILES_ACROSS)
    inside = number - first * row_tiles
    return inside // across, first + inside % across


def run(fed: Fed, codes: Tensor, scales: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
    tokens, columns = fed.shape
    num_rows = codes.shape[0]
    y = torch.empty(tokens, num_rows, dtype=torch.bfloat16, device=codes.device)
    launch_kernel(
        mxfp4_linear_kernel,
        (num_programs(tile, tokens, num_rows),),
        fed.values,
        fed.scales,
        codes,
        scales,
        bias,
        y,
        tokens,
        M=num_rows,
        K=columns,
        STORED=fed.stored,
        tile=tile,
        **tile.constants,
        **tile.options,
    )
    return y


# Chosen by counting programs and bytes; on an H200 narrower strips of the weight were slower for few tokens. Tiles
# of 128 tokens fit the 100 KB of sm_86, sm_89 and SM12x.
GEMM = (
    Tile(rows=128, columns=128, depth=64, warps=8, stages=3),
    Tile(rows=64, columns=128, depth=64, warps=4, stages=4),
    Tile(rows=64, columns=64, depth=64, warps=4, stages=4),
    Tile(rows=32, columns=64, depth=128, warps=4, stages=4),
    Tile(rows=16, columns=64, depth=128, warps=4, stages=4),
)
GEMM_SM90 = (Tile(rows=128, columns=256, depth=64, warps=8, stages=4), *GEMM)
MANY_PROGRAMS = 128


def pick_tile(tokens: int, num_rows: int, capability: tuple[int, int] | None, native: bool) -> Tile:
    tile = largest_that_suits(tokens, num_rows, GEMM_SM90 if is_sm90(capability) else GEMM)
    return replace(tile, depth=128, stages=3) if native else tile  # one byte per value, or half of one


def largest_that_suits(tokens: int, num_rows: int, tiles: tuple[Tile, ...]) -> Tile:
    """Returns the largest tile that is more than half full and gives every SM a program, or the smallest."""

    def suits(tile: Tile) -> bool:
        return tile.rows < 2 * tokens and num_programs(tile, tokens, num_rows) >= MANY_PROGRAMS

    return next(filter(suits, tiles), tiles[-1])


def pin_tile(tile: str, capability: tuple[int, int] | None) -> Tile | None:
    """Returns a tile of the pinned size, shaped to fit shared memory: 227 KB on sm_90, otherwise SM12x's 100 KB.

    Returns None for auto. The experts' matmuls use it too.
    """
    if (sizes := parse_tile(tile)) is None:
        return None
    rows, columns = sizes
    sums, on_hopper = rows * columns, is_sm90(capability)
    of_a_warp = 4096 if on_hopper else 2048  # 128 or 64 per thread
    warps = max(4 if columns >= 64 else 1, min(8, sums // of_a_warp))  # a warp group if its instructions fit
    stages = 4 if on_hopper else 2 if sums > 128 * 128 else 3
    return Tile(rows=rows, columns=columns, depth=64, warps=warps, stages=stages)


def num_programs(tile: Tile, tokens: int, num_rows: int) -> int:
    return divide_up(tokens, tile.rows) * divide_up(num_rows, tile.columns)
