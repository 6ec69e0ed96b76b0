"""Cuts attention into tiles and splits for a GPU, by shapes alone, so that a CUDA graph may hold the result."""

from __future__ import annotations

from dataclasses import dataclass, replace

from firesteel.kernels.tiles.launch import power_of_two

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
    page_size: int = 64

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
    """Cuts anything alike, without splits, so that a query's sums follow from its position alone.

    Tiles of keys fit into pages, so that each begins at a multiple of its size, with a window, too.
    """
    tiles = _tiles(shapes, max(INVARIANT_ROWS // power_of_two(shapes.heads_per_kv_head), 1))
    return replace(tiles, keys=min(tiles.keys, shapes.page_size))


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
