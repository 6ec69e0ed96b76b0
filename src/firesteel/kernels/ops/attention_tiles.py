"""Cuts attention into tiles and splits for a GPU, by shapes alone, so that a CUDA graph may hold the result."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from firesteel.device import count_sms
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.tiles.launch import power_of_two

Cut = TypeVar("Cut")  # how a call is cut: tiles and splits

DECODE_QUERIES = 8  # most queries per request, on average, for `cut_decode`
PREFILL_ROWS = 128
LEAST_ROWS = 16  # of a matrix product
INVARIANT_ROWS = 64  # one size for decoding and prompts; also the least of Hopper's matrix instruction
TILE_BYTES = 8192  # of keys, and as many of values
LEAST_KEYS = 128  # of a split: below this the merge costs more than the split gains
MOST_KEYS = 4096  # of a split when decoding: one long request must not outlast the rest of its batch
MAX_SPLITS = 64
MOST_PART_BYTES = 64 << 20  # of the splits' results before they are merged: bounds wide tables, many requests
PROGRAMS_PER_SM = 2  # measured on an H200: with more, the merge costs more than is gained
SPLIT_KEYS = 256  # of the first fixed splits: one request of 8192 tokens has 32, which with 8 kv heads fill an H200
SPLITS_PER_OCTAVE = 16  # fixed splits grow with position, so that 131072 tokens have 96 parts instead of 512
MOST_CUTS = 4096  # kept in memory: every length of a prompt has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    num_queries: int
    num_requests: int
    heads: int
    kv_heads: int
    dim: int
    element_bytes: int
    longest: int  # tokens that a row of the page table has room for
    window: int | None
    num_sms: int

    @property
    def heads_per_kv_head(self) -> int:
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Tiles:
    """`queries` x `head_rows` rows read their keys in tiles of `keys`; `splits` programs share the keys."""

    queries: int
    head_rows: int  # query heads of one kv head, padded
    keys: int
    splits: int = 1

    def __str__(self) -> str:
        return f"{self.queries * self.head_rows}x{self.keys}" + (f"/{self.splits}" if self.splits > 1 else "")

    @property
    def num_warps(self) -> int:
        """Warps per program; with 128 rows, 4 warps would run out of registers on SM12x."""
        rows = self.queries * self.head_rows
        return 2 if rows == LEAST_ROWS else max(rows // 16, 4)

    @property
    def num_stages(self) -> int:
        """Pipeline stages: half fetch page numbers, half keys and values: 2 or 3 tiles of 16 KiB in flight."""
        return 5 if self.queries * self.head_rows >= PREFILL_ROWS else 7

    def count(self, shapes: Shapes) -> int:
        """Returns the number of query tiles, enough for any lengths; the kernel assigns them to requests."""
        return (shapes.num_queries + shapes.num_requests * (self.queries - 1)) // self.queries


def cut_prefill(shapes: Shapes) -> Tiles:
    """Cuts prompts: many rows per tile, and splits only if a short chunk would leave SMs idle."""
    rows = min(PREFILL_ROWS, 2 * TILE_BYTES // (shapes.dim * shapes.element_bytes))
    tiles = _tiles(shapes, rows // power_of_two(shapes.heads_per_kv_head))
    return _split(tiles, shapes, at_least=1)


def cut_decode(shapes: Shapes) -> Tiles:
    """Cuts decoding steps: as many queries per tile as a request has on average, and splits."""
    tiles = _tiles(shapes, power_of_two(-(-shapes.num_queries // shapes.num_requests)))
    return _split(tiles, shapes, at_least=-(-shapes.longest // MOST_KEYS))


def cut_invariant(shapes: Shapes) -> Tiles:
    """Cuts anything into the same tiles, so that a query's sums follow from its position alone.

    `splits` is the number of programs that share the fixed splits of the keys. It changes no bit. It is 1, so that
    nothing is stored in between, with a window, if there are programs enough, or if the parts would be too large.
    """
    tiles = _tiles(shapes, max(INVARIANT_ROWS // power_of_two(shapes.heads_per_kv_head), 1))
    parts = count_splits(shapes.longest)
    part_bytes = 4 * shapes.num_queries * shapes.heads * (shapes.dim + 2) * parts
    if shapes.window is not None or part_bytes > MOST_PART_BYTES:
        return tiles
    programs = shapes.kv_heads * tiles.count(shapes)
    wanted = max(PROGRAMS_PER_SM * shapes.num_sms // programs, -(-shapes.longest // MOST_KEYS))
    return replace(tiles, splits=min(wanted, parts))


def count_splits(num_keys: int) -> int:
    """Returns the number of fixed splits that the first keys of a text have; the kernel computes the same."""
    last = (num_keys - 1) // SPLIT_KEYS
    octave = max((last // SPLITS_PER_OCTAVE).bit_length() - 1, 0)
    return (last >> octave) + SPLITS_PER_OCTAVE * octave + 1


def _tiles(shapes: Shapes, queries: int) -> Tiles:
    head_rows = max(power_of_two(shapes.heads_per_kv_head), LEAST_ROWS // queries)
    return Tiles(queries, head_rows, max(TILE_BYTES // (shapes.dim * shapes.element_bytes), 16))


def _split(tiles: Tiles, shapes: Shapes, at_least: int) -> Tiles:
    seen = shapes.longest if shapes.window is None else min(shapes.longest, shapes.window + tiles.queries - 1)
    programs = shapes.kv_heads * tiles.count(shapes)
    wanted = max(PROGRAMS_PER_SM * shapes.num_sms // programs, at_least)
    room = MOST_PART_BYTES // (4 * shapes.num_queries * shapes.heads * shapes.dim)
    splits = max(min(wanted, MAX_SPLITS, seen // LEAST_KEYS, room), 1)
    return replace(tiles, splits=power_of_two(splits + 1) // 2)  # a power of two: few kernels to compile


def find_tiles(cut: Callable[[Shapes], Cut], operands: AttentionOperands) -> tuple[Shapes, Cut]:
    """Returns the shapes of a call and how `cut` cuts them."""
    q, k_pages = operands.q, operands.k_pages
    found: tuple[Shapes, Cut] = _cut(
        cut, q.shape, q.element_size(), k_pages.shape, operands.page_table.shape, operands.window, q.device
    )
    return found


@functools.lru_cache(MOST_CUTS)
def _cut(
    cut: Callable[[Shapes], Any],
    q_shape: tuple[int, ...],
    element_bytes: int,
    pages_shape: tuple[int, ...],
    table_shape: tuple[int, ...],
    window: int | None,
    device: torch.device,
) -> tuple[Shapes, Any]:
    shapes = Shapes(
        num_queries=q_shape[0],
        num_requests=table_shape[0],
        heads=q_shape[1],
        kv_heads=pages_shape[1],
        dim=q_shape[2],
        element_bytes=element_bytes,
        longest=table_shape[1] * pages_shape[2],
        window=window,
        num_sms=count_sms(device),
    )
    return shapes, cut(shapes)


def list_inputs(operands: AttentionOperands) -> tuple[Any, ...]:
    """Returns the tensors and sizes that all kernels of attention read."""
    q, page_table = operands.q, operands.page_table
    pages = (operands.k_pages, operands.v_pages, page_table)
    lengths = (operands.query_starts, operands.kv_lens)
    return (q, *pages, *lengths, operands.sinks, page_table.shape[0], q.shape[0], page_table.stride(0))


def list_factors(operands: AttentionOperands) -> tuple[float, float]:
    """Returns what products of queries and keys, for powers of two, and mixtures of values are multiplied by."""
    return operands.scale * operands.key_scale * math.log2(math.e), operands.value_scale


def list_constants(tiles: Tiles, q: Tensor, k_pages: Tensor, window: int | None) -> dict[str, int]:
    """Returns the constants that all kernels of attention have."""
    return {
        "HEADS": q.shape[1] // k_pages.shape[1],
        "HEAD_ROWS": tiles.head_rows,
        "D": q.shape[2],
        "Q_STRIDE": q.stride(0),
        "PAGE_SIZE": k_pages.shape[2],
        "PAGE_STRIDE": k_pages.stride(0),
        "WINDOW": window or 0,
        "TILE_QUERIES": tiles.queries,
        "TILE_KEYS": tiles.keys,
    }
