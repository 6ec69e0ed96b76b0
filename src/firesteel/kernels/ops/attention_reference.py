"""Steps of attention's reference in plain torch: requests grouped by length, gathered pages, scores and sums."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def group_alike(starts: list[int], lens: list[int]) -> list[list[int]]:
    """Groups requests with as many queries and about as many tokens; a group is padded and computed together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        if end > start:
            groups.setdefault((end - start, lens[request].bit_length()), []).append(request)
    return list(groups.values())


def find_span(ends: Tensor, num_queries: int, window: int | None, page_size: int) -> Tensor:
    """Returns positions to read [R, C], from the first page that a query sees to the last; C is common to all."""
    first_seen = torch.zeros_like(ends) if window is None else (ends - num_queries - window + 1).clamp(min=0)
    first = first_seen // page_size * page_size
    count = int((ends - first).max())
    count = -(-count // page_size) * page_size
    return first[:, None] + torch.arange(count, device=ends.device)


def gather_pages(pages: Tensor, tables: Tensor, span: Tensor) -> Tensor:
    """Returns keys or values [R, K, C, D] fp32 at the positions in `span`, which are whole pages."""
    heads, page_size = pages.shape[1:3]
    numbers = (span[:, ::page_size] // page_size).clamp(max=tables.shape[1] - 1)
    rows = tables.gather(1, numbers)[:, None, :] * heads + torch.arange(heads, device=pages.device)[:, None]
    return pages.flatten(0, 1)[rows].flatten(2, 3).float()


def mask_seen(span: Tensor, ends: Tensor, num_queries: int, window: int | None) -> Tensor:
    """Returns [R, t, C], true where a query sees a key."""
    queries = (ends - num_queries)[:, None, None] + torch.arange(num_queries, device=ends.device)[:, None]
    keys = span[:, None, :]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def attend_dense(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sinks: Tensor | None, scale: float, value_scale: float
) -> Tensor:
    """Returns [R, t, Q, D] from q of that shape, keys and values [R, K, C, D] and mask [R, t, C]."""
    requests, num_queries, heads, dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.float().mul(scale).unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)  # [R, K, Q/K, t, D]
    rows = grouped.reshape(requests, kv_heads, -1, dim)
    scores = (rows @ keys.transpose(-1, -2)).unflatten(2, (-1, num_queries))
    scores.masked_fill_(~mask[:, None, None], float("-inf"))
    values.masked_fill_(~mask.any(1)[:, None, :, None], 0.0)  # unwritten slots may hold NaN
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        sink = sinks.float().view(1, kv_heads, -1, 1, 1)
        top = top.maximum(sink)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sink - top).exp()
    mixed: Tensor = (weights.flatten(2, 3) @ values).unflatten(2, (-1, num_queries)) / total * value_scale
    back: Tensor = mixed.permute(0, 3, 1, 2, 4).reshape(requests, num_queries, heads, dim)
    return back.to(q.dtype)
