"""Row-invariant attention: in plain torch on a CPU, and the launches of `triton:invariant` on a GPU.

On a CPU keys come in tiles from position 0, and all products have one shape. A tile of queries belongs to one
request. Each adds its tiles of keys in ascending order to a running maximum, sum and mixture, so that a query's
order of summation follows from its position alone. For a GPU see kernels/triton/attention_splits.py.

Shape letters: B tiles of queries, G query heads per kv head, t QUERIES, C KEYS.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.attention_tiles import (
    SPLIT_KEYS,
    SPLITS_PER_OCTAVE,
    Shapes,
    Tiles,
    count_splits,
    cut_invariant,
    find_tiles,
    list_constants,
    list_factors,
    list_inputs,
)
from firesteel.kernels.tiles.launch import MOST_ROWS_OF_GRID, launch_kernel

MERGE_WARPS = 2
QUERIES, KEYS = 8, 64
LOWEST = -1e30  # a maximum before any score: finite, so that exp(-inf - LOWEST) is 0, not NaN


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Tiles of queries; those with most keys come last."""

    requests: Tensor  # [B]
    rows: Tensor  # [B, t] of the batch; -1: none
    positions: Tensor  # [B, t]
    begins: Tensor  # [B], the first tile of keys that a query sees
    ends: Tensor  # [B], one past the last


def attend_fixed(operands: AttentionOperands) -> Tensor:
    q, k_pages = operands.q, operands.k_pages
    y = torch.zeros_like(q)
    if (tiles := _cut(operands)) is None:
        return y
    heads, kv_heads = q.shape[1], k_pages.shape[1]
    grouped = q[tiles.rows.clamp(min=0)].float().mul(operands.scale * operands.key_scale)  # [B, t, Q, D]
    grouped = grouped.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, K, G t, D]
    sinks = torch.full((heads,), LOWEST) if operands.sinks is None else operands.sinks.float().clamp(min=LOWEST)
    top = (
        sinks.view(kv_heads, -1, 1).expand(-1, -1, QUERIES).flatten(1).repeat(len(tiles.rows), 1, 1)
    )  # [B, K, G t]
    total = torch.zeros_like(top) if operands.sinks is None else torch.ones_like(top)
    mixed = torch.zeros_like(grouped)
    for number in range(int(tiles.begins.min()), int(tiles.ends.max())):
        some = ((tiles.begins <= number) & (number < tiles.ends)).nonzero()[:, 0]
        if not len(some):
            continue
        keys, values, seen = _gather(operands, tiles, some, number)
        scores = _product(grouped[some], keys.transpose(-1, -2))  # [B, K, G t, C]
        scores = scores.unflatten(2, (-1, QUERIES)).masked_fill(~seen[:, None, None], float("-inf")).flatten(2, 3)
        new_top = top[some].maximum(scores.amax(-1))
        weights, shrink = (scores - new_top[..., None]).exp(), (top[some] - new_top).exp()
        total[some] = total[some] * shrink + weights.sum(-1)
        mixed[some] = mixed[some] * shrink[..., None] + _product(weights, values)
        top[some] = new_top
    mixed = mixed / total[..., None] * operands.value_scale
    back = mixed.unflatten(2, (-1, QUERIES)).permute(0, 3, 1, 2, 4).flatten(2, 3)  # [B, t, Q, D]
    is_row = tiles.rows >= 0
    y[tiles.rows[is_row]] = back[is_row].to(q.dtype)
    return y


def _cut(operands: AttentionOperands) -> _Tiles | None:
    """Returns the tiles of all queries, or None if there are none."""
    starts, lens = operands.query_starts.tolist(), operands.kv_lens.tolist()
    requests, rows, positions = [], [], []
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        for first in range(start, end, QUERIES):
            places = range(first, first + QUERIES)
            requests.append(request)
            rows.append([row if row < end else -1 for row in places])
            positions.append([lens[request] - end + min(row, end - 1) for row in places])
    if not requests:
        return None
    at = torch.tensor(positions)
    first_seen = torch.zeros_like(at[:, 0]) if operands.window is None else at[:, 0] - operands.window + 1
    begins = first_seen.clamp(min=0) // KEYS
    return _Tiles(torch.tensor(requests), torch.tensor(rows), at, begins, at[:, -1] // KEYS + 1)


def _gather(operands: AttentionOperands, tiles: _Tiles, some: Tensor, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns keys and values [B, K, C, D] of tile `number`, and which of them each query sees [B, t, C].

    What no query sees is zero: unwritten slots may hold NaN.
    """
    page_size, table = operands.k_pages.shape[2], operands.page_table[tiles.requests[some]]
    keys = number * KEYS + torch.arange(KEYS)
    positions = tiles.positions[some][:, :, None]
    seen = keys <= positions
    if operands.window is not None:
        seen &= keys > positions - operands.window
    read = seen.any(1)  # [B, C]
    # Entries of a page table beyond the request's tokens are stale.
    pages = table[:, (keys // page_size).clamp(max=table.shape[1] - 1)].where(read, 0)
    offsets = (keys % page_size).expand_as(pages)
    parts = []
    for stored in (operands.k_pages, operands.v_pages):
        found = stored[pages, :, offsets].float()  # [B, C, K, D]
        parts.append(found.where(read[:, :, None, None], torch.zeros(())).transpose(1, 2).contiguous())
    return parts[0], parts[1], seen


def _product(first: Tensor, second: Tensor) -> Tensor:
    product = torch.bmm(first.flatten(0, 1), second.flatten(0, 1))
    unfolded: Tensor = product.unflatten(0, first.shape[:2])
    return unfolded


def refuse_splits(operands: AttentionOperands) -> str | None:
    """Refuses more tiles than a grid has rows. All offsets are 64-bit."""
    shapes, tiles = find_tiles(cut_invariant, operands)
    if tiles.count(shapes) > MOST_ROWS_OF_GRID:
        return f"takes up to {MOST_ROWS_OF_GRID * tiles.queries} queries per call, not {shapes.num_queries}"
    return None


def run_splits(operands: AttentionOperands) -> Tensor:
    return launch_splits(operands, *find_tiles(cut_invariant, operands))


def launch_splits(operands: AttentionOperands, shapes: Shapes, tiles: Tiles) -> Tensor:
    """Launches one kernel, and a second to merge if programs share keys. The grids follow from shapes alone."""
    from firesteel.kernels.triton import attention_splits as device

    q, k_pages = operands.q, operands.k_pages
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0] == 0:
        return y
    has_parts = tiles.splits > 1
    num_parts = count_splits(shapes.longest) if has_parts else 1
    parts, tops, totals, counts = y, None, None, None
    if has_parts:
        places = (*q.shape[:2], num_parts)
        tops, totals = (torch.empty(places, dtype=torch.float32, device=q.device) for _ in range(2))
        parts = torch.empty(*places, shapes.dim, dtype=torch.float32, device=q.device)
        counts = torch.empty(q.shape[0], dtype=torch.int32, device=q.device)
    launch_kernel(
        device.attend_splits,
        (shapes.kv_heads, tiles.count(shapes), tiles.splits),
        parts,
        tops,
        totals,
        counts,
        *list_inputs(operands),
        num_parts,
        *list_factors(operands),
        **_constants(tiles, q, k_pages, operands.window),
        tile=tiles,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    if has_parts:
        launch_kernel(
            device.merge_splits,
            tuple(q.shape[:2]),
            y,
            parts,
            tops,
            totals,
            counts,
            operands.sinks,
            num_parts,
            operands.value_scale,
            D=shapes.dim,
            num_warps=MERGE_WARPS,
        )
    return y


def _constants(tiles: Tiles, q: Tensor, k_pages: Tensor, window: int | None) -> dict[str, int | bool]:
    fixed = {"SPLIT_KEYS": SPLIT_KEYS, "PER_OCTAVE": SPLITS_PER_OCTAVE, "PARTS": tiles.splits > 1}
    return list_constants(tiles, q, k_pages, window) | fixed


def list_code(shapes: Shapes, *, fp8: bool) -> Iterator[DeviceCode]:
    """Lists the kernels that share keys, that do not, and that have a window, each for all types of pages."""
    whole = replace(cut_invariant(shapes), splits=1)
    for variant, tiles, window in (
        ("parts", replace(whole, splits=2), None),
        ("whole", whole, None),
        ("window", whole, 128),
    ):
        yield _attend_code(f"triton:invariant {variant}", tiles, window, torch.bfloat16)
        if fp8:
            yield _attend_code(f"triton:invariant {variant}, fp8-pages", tiles, window, torch.float8_e4m3fn)
    yield _merge_code()


def _attend_code(variant: str, tiles: Tiles, window: int | None, pages: torch.dtype) -> DeviceCode:
    from firesteel.kernels.triton import attention_splits as device

    q, k_pages = torch.empty(1, 64, 64, dtype=torch.bfloat16), torch.empty(1, 8, 64, 64, dtype=pages)
    inputs = dict.fromkeys(("q", "sinks"), "*bf16")
    inputs |= dict.fromkeys(("k_pages", "v_pages"), "*bf16" if pages == torch.bfloat16 else "*fp8e4nv")
    inputs |= dict.fromkeys(("page_table", "query_starts", "kv_lens"), "*i64")
    inputs |= dict.fromkeys(("num_requests", "num_tokens", "table_stride", "num_parts"), "i32")
    inputs |= {"scale": "fp32", "value_scale": "fp32"}
    parts = dict.fromkeys(("tops", "totals"), "*fp32") | {"counts": "*i32"}
    has_parts = tiles.splits > 1
    return DeviceCode(
        variant=variant,
        kernel=device.attend_splits,
        signature={"out": "*fp32"} | parts | inputs if has_parts else {"out": "*bf16"} | inputs,
        constants=_constants(tiles, q, k_pages, window) | ({} if has_parts else dict.fromkeys(parts)),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def _merge_code() -> DeviceCode:
    from firesteel.kernels.triton import attention_splits as device

    signature = {"y": "*bf16", "sinks": "*bf16", "counts": "*i32", "num_parts": "i32", "value_scale": "fp32"}
    return DeviceCode(
        variant="triton:invariant merge",
        kernel=device.merge_splits,
        signature=signature | dict.fromkeys(("parts", "tops", "totals"), "*fp32"),
        constants={"D": 64},
        num_warps=MERGE_WARPS,
    )
