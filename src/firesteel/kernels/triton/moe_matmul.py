"""Launches the expert MLP over sorted pairs, fc1, fc2 and their sum, and picks the tiles of the two matmuls."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import torch
from torch import Tensor

from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.target import is_sm90
from firesteel.kernels.tiles.launch import divide_up, launch_kernel
from firesteel.kernels.triton.moe_down import SUM_COLUMNS, fc2, sum_parts
from firesteel.kernels.triton.moe_sort import sort_pairs
from firesteel.kernels.triton.moe_up import fc1
from firesteel.kernels.triton.mxfp4_linear import pin_tile
from firesteel.kernels.triton.mxfp4_product import Tile


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
