"""Sorts (token, rank) pairs by expert and lists the tiles over them.

Pair p is rank p % A of token p // A; pairs without an expert, whose id is negative, are left out. The sort is
stable and counts integers, so the same ids give the same bits. Nothing waits for the CPU, and every size depends on
shapes only. A tile is `rows` consecutive pairs of one expert; there are at most `max_tiles`, whatever the ids.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from firesteel.kernels.tiles.launch import launch_kernel

MAX_CHUNK = 256  # pairs per program
COUNTS_AT_ONCE = tl.constexpr(32)
PAIRS_AT_ONCE = tl.constexpr(16)


@dataclass(frozen=True, slots=True)
class Sorted:
    order: Tensor  # [T A] int32: pairs, those of expert 0 first; nothing behind the last expert's
    ends: Tensor  # [E] int32: where in `order` each expert's pairs end
    tile_experts: Tensor  # [tiles] int32, -1 for unused tiles
    tile_firsts: Tensor  # [tiles] int32: the tile's first index in `order`


@triton.jit(do_not_specialize=["num_pairs"])
def count_chunk(ids, counts, num_pairs, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    chunk = tl.program_id(0)
    experts = load_chunk(ids, chunk, num_pairs, CHUNK)
    tl.store(counts + chunk * EXPERTS + tl.arange(0, EXPERTS), count(experts, EXPERTS))


@triton.jit(do_not_specialize=["num_pairs", "num_chunks", "num_tiles", "rows"])
def place_chunk(
    ids,
    counts,
    order,
    ends,
    tile_experts,
    tile_firsts,
    num_pairs,
    num_chunks,
    num_tiles,
    rows,
    E: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Places pairs and tiles. EXPERTS is E rounded up to a power of 2. Without `counts` there is only one chunk."""
    chunk = tl.program_id(0)
    lanes = tl.arange(0, EXPERTS)
    experts = load_chunk(ids, chunk, num_pairs, CHUNK)
    before = tl.zeros([EXPERTS], tl.int32)
    if counts is None:
        total = count(experts, EXPERTS)
    else:
        total = tl.zeros([EXPERTS], tl.int32)
        for first in range(0, num_chunks, COUNTS_AT_ONCE):
            chunks = first + tl.arange(0, COUNTS_AT_ONCE)
            at = counts + chunks[:, None] * EXPERTS + lanes[None, :]
            some = tl.load(at, mask=(chunks < num_chunks)[:, None], other=0)
            total += tl.sum(some, 0)
            before += tl.sum(tl.where((chunks < chunk)[:, None], some, 0), 0)
    last = tl.cumsum(total, 0)
    start = last - total

    pairs = chunk * CHUNK + tl.arange(0, CHUNK)
    place = tl.gather(start + before, tl.maximum(experts, 0), 0)
    for first in range(0, CHUNK, PAIRS_AT_ONCE):
        earlier = chunk * CHUNK + first + tl.arange(0, PAIRS_AT_ONCE)
        others = tl.load(ids + earlier, mask=earlier < num_pairs, other=-1).to(tl.int32)
        same = (experts[:, None] == others[None, :]) & (earlier[None, :] < pairs[:, None])
        place += tl.sum(same.to(tl.int32), 1)
    tl.store(order + place, pairs, mask=experts >= 0)

    tiles = (total + rows - 1) // rows
    last_tile = tl.cumsum(tiles, 0)
    owner = tl.sum((last_tile[None, :] <= pairs[:, None]).to(tl.int32), 1)  # expert of tile number `pairs`
    first_row = tl.gather(start - (last_tile - tiles) * rows, tl.minimum(owner, EXPERTS - 1), 0) + pairs * rows
    tl.store(tile_experts + pairs, tl.where(owner < EXPERTS, owner, -1), mask=pairs < num_tiles)
    tl.store(tile_firsts + pairs, first_row, mask=pairs < num_tiles)
    if chunk == 0:
        tl.store(ends + lanes, last, mask=lanes < E)


@triton.jit
def load_chunk(ids, chunk, num_pairs, CHUNK: tl.constexpr):
    pairs = chunk * CHUNK + tl.arange(0, CHUNK)
    return tl.load(ids + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32)


@triton.jit
def count(experts, EXPERTS: tl.constexpr):
    return tl.sum((experts[:, None] == tl.arange(0, EXPERTS)[None, :]).to(tl.int32), 0)


def max_tiles(num_pairs: int, num_experts: int, rows: int) -> int:
    used = min(num_pairs, num_experts)
    return (num_pairs + used * (rows - 1)) // rows


def sort_pairs(ids: Tensor, num_experts: int, rows: int) -> Sorted:
    """Sorts the pairs of `ids` [T, A], which is contiguous with values from 0 to E - 1, or negative: no expert."""
    num_pairs, num_tiles = ids.numel(), max_tiles(ids.numel(), num_experts, rows)
    chunk = min(MAX_CHUNK, max(16, triton.next_power_of_2(num_pairs)))
    num_chunks, padded = triton.cdiv(num_pairs, chunk), triton.next_power_of_2(num_experts)

    def int32(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=ids.device)

    result = Sorted(int32(num_pairs), int32(num_experts), int32(num_tiles), int32(num_tiles))
    counts = None
    if num_chunks > 1:
        counts = int32(num_chunks, padded)
        launch_kernel(count_chunk, (num_chunks,), ids, counts, num_pairs, EXPERTS=padded, CHUNK=chunk)
    launch_kernel(
        place_chunk,
        (num_chunks,),
        ids,
        counts,
        result.order,
        result.ends,
        result.tile_experts,
        result.tile_firsts,
        num_pairs,
        num_chunks,
        num_tiles,
        rows,
        E=num_experts,
        EXPERTS=padded,
        CHUNK=chunk,
        num_warps=8,
    )
    return result
