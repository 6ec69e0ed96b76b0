"""Device code of linear: a matrix-vector product for a single token, tiles on the matrix units for more.

The columns need not fill the last tile: its tail is masked in both operands, and nothing is padded or copied. Rows
past the end read row 0 and are not stored. Tokens past the end do the same, or are not read if many may be absent.
No sum is split over programs, so the same inputs give the same bits.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.tiles.launch import divide_up, launch_kernel
from firesteel.kernels.triton.arithmetic import dot, round_to, widen

VECTOR_COLUMNS = 1024  # 3 tiles of 1024 waste 6 % of lanes on 2880 columns, none on 4096
VECTOR_WARPS = 4
FEW_TOKENS = tl.constexpr(64)  # per tile; larger tiles are chosen only if most tokens exist


class LinearTile(NamedTuple):
    """The work of one program: tokens times rows of the weight, `columns` of both at a time."""

    tokens: int
    rows: int
    columns: int
    num_warps: int
    num_stages: int


# Measured on an H200. The largest's shared memory, 3 * (128 + 128) * 64 * 2 = 98304 bytes, fits GB10's 101376.
FEWEST, LARGEST = LinearTile(16, 32, 128, 4, 4), LinearTile(128, 128, 64, 8, 3)
FLAT_TILES = (FEWEST, LinearTile(32, 32, 128, 4, 4), LinearTile(64, 32, 128, 4, 3), LARGEST)
TALL_TILES = (FEWEST, LinearTile(64, 64, 64, 4, 4), LARGEST)  # for lm_head
TILES = tuple(dict.fromkeys((*FLAT_TILES, *TALL_TILES)))
TALL_ROWS = 65536
LEAST_PROGRAMS = 64  # with the largest tile; with fewer programs, smaller tiles reach more SMs


def pick_tile(tokens: int, num_rows: int) -> LinearTile:
    """Returns the narrowest tile that holds all tokens, or the largest that gives enough programs."""
    tiles: tuple[LinearTile, ...] = TALL_TILES if num_rows >= TALL_ROWS else FLAT_TILES
    programs = divide_up(tokens, LARGEST.tokens) * divide_up(num_rows, LARGEST.rows)
    tiles = tiles if programs >= LEAST_PROGRAMS else tiles[:-1]
    return next((tile for tile in tiles if tokens <= tile.tokens), tiles[-1])


def vector_rows(rows: int) -> int:
    """Returns the rows per program: few enough that small matrices still reach every SM."""
    return 1 if rows <= 512 else 4


@triton.jit
def vector_kernel(
    x,
    weight,
    bias,
    y,
    x_stride,
    weight_stride,
    M: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    x += token * x_stride + columns
    start = weight + tl.where(rows < M, rows, 0).to(tl.int64)[:, None] * weight_stride + columns[None, :]
    products = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in tl.static_range(0, N, COLUMNS):
        inside = columns < N - first
        w = widen(tl.load(start + first, mask=inside[None, :], other=0.0))
        products += w * widen(tl.load(x + first, mask=inside, other=0.0))[None, :]
    result = tl.sum(products, axis=1)
    if bias is not None:
        result += widen(tl.load(bias + rows, mask=rows < M, other=0.0))
    tl.store(y + token * M + rows, round_to(result, y.dtype.element_ty), mask=rows < M)


@triton.jit(do_not_specialize=["T"])
def tile_kernel(
    x,
    weight,
    bias,
    y,
    T,
    x_stride,
    weight_stride,
    M: tl.constexpr,
    N: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Multiplies one tile. Token tiles vary fastest, so that concurrent programs share weights in L2."""
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    is_token = tokens < T
    x_start = x + tl.where(is_token, tokens, 0).to(tl.int64)[:, None] * x_stride + columns[None, :]
    w_start = weight + tl.where(rows < M, rows, 0).to(tl.int64)[None, :] * weight_stride + columns[:, None]
    sums = tl.zeros((TOKENS, ROWS), tl.float32)
    for first in range(0, N, COLUMNS):
        inside = columns < N - first
        wanted = is_token[:, None] & inside[None, :] if TOKENS <= FEW_TOKENS else inside[None, :]
        a = tl.load(x_start + first, mask=wanted, other=0.0)
        b = tl.load(w_start + first, mask=inside[:, None], other=0.0)
        sums = dot(a, b, sums)
    if bias is not None:
        sums += widen(tl.load(bias + rows, mask=rows < M, other=0.0))[None, :]
    target = y + tokens.to(tl.int64)[:, None] * M + rows[None, :]
    tl.store(target, round_to(sums, y.dtype.element_ty), mask=is_token[:, None] & (rows < M)[None, :])


def launch_vector(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> None:
    """Writes the contiguous `y`, of any float type. Reads the weights once per token."""
    num_rows, num_columns = weight.shape
    at_once = vector_rows(num_rows)
    launch_kernel(
        vector_kernel,
        (divide_up(num_rows, at_once), x.shape[0]),
        x,
        weight,
        bias,
        y,
        x.stride(0),
        weight.stride(0),
        M=num_rows,
        N=num_columns,
        ROWS=at_once,
        COLUMNS=VECTOR_COLUMNS,
        num_warps=VECTOR_WARPS,
    )


def launch_tiles(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, tile: LinearTile | None = None) -> None:
    """Writes the contiguous `y`, of any float type, in tiles of one size: the one that fits, or `tile`."""
    tokens, (num_rows, num_columns) = x.shape[0], weight.shape
    tile = tile or pick_tile(tokens, num_rows)
    launch_kernel(
        tile_kernel,
        (divide_up(tokens, tile.tokens), divide_up(num_rows, tile.rows)),
        x,
        weight,
        bias,
        y,
        tokens,
        x.stride(0),
        weight.stride(0),
        M=num_rows,
        N=num_columns,
        TOKENS=tile.tokens,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
