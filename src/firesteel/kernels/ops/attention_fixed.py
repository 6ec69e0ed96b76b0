"""Row-invariant attention in plain torch on a CPU: keys in tiles from position 0, all products of one shape.

A tile of queries belongs to one request. Each adds its tiles of keys in ascending order to a running maximum, sum
and mixture, so that a query's order of summation follows from its position alone.

Shape letters: B tiles of queries, G query heads per kv head, t QUERIES, C KEYS.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.kernels.ops.attention_operands import AttentionOperands

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
