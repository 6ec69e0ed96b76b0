"""Causal attention over paged keys and values, with sinks and an optional sliding window.

in   q             [T, Q, D]     rows of request r: query_starts[r] to query_starts[r+1]
     k_pages       [P, K, S, D]  HND; Q/K query heads share a kv head
     v_pages       [P, K, S, D]
     page_table    [R, N] int64  entries wholly before the window are never read
     query_starts  [R+1] int64
     kv_lens       [R] int64     the queries are the last ones of each request
     sinks         [Q] or None   a logit per query head that joins the denominator only
     window        None, or the number of tokens seen, the token itself included
     scale         of the products, not of the sinks
out  y             [T, Q, D]
Computed in fp32, rounded once on store.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from firesteel.kernels.op import Sample, define_op
from firesteel.kernels.tolerance import bf16

QUERIES_AT_ONCE = 128  # bounds the score matrix of a long prompt


def _bytes(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, query_starts: Tensor, kv_lens: Tensor,
    sinks: Tensor | None, window: int | None, scale: float,
) -> int:  # fmt: skip
    query_lens = query_starts.diff()
    seen = kv_lens if window is None else kv_lens.minimum(query_lens + window - 1)
    token_bytes = k_pages.shape[1] * k_pages.shape[3] * k_pages.element_size()
    return 2 * q.nbytes + 2 * int(seen.sum()) * token_bytes


@define_op(bytes=_bytes, tolerance=bf16(ulps=2, why="probabilities may be rounded to bf16 before the product"))
def attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, query_starts: Tensor, kv_lens: Tensor,
    sinks: Tensor | None, window: int | None, scale: float,
) -> Tensor:  # fmt: skip
    y = torch.empty_like(q)
    starts, lens = query_starts.tolist(), kv_lens.tolist()
    for requests in _alike(starts, lens):
        num_queries = starts[requests[0] + 1] - starts[requests[0]]
        for begin in range(0, num_queries, QUERIES_AT_ONCE):
            end = min(begin + QUERIES_AT_ONCE, num_queries)
            rows = torch.tensor([range(starts[r] + begin, starts[r] + end) for r in requests], device=q.device)
            ends = torch.tensor([lens[r] - num_queries + end for r in requests], device=q.device)
            span = _span(ends, end - begin, window, k_pages.shape[2])
            tables = page_table[requests]
            keys, values = _gather(k_pages, tables, span), _gather(v_pages, tables, span)
            y[rows] = _attend(q[rows], keys, values, _mask(span, ends, end - begin, window), sinks, scale)
    return y


def _alike(starts: list[int], lens: list[int]) -> list[list[int]]:
    """Requests with as many queries and about as many tokens, to be computed together, padded to the longest."""
    groups: dict[tuple[int, int], list[int]] = {}
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        if end > start:
            groups.setdefault((end - start, lens[request].bit_length()), []).append(request)
    return list(groups.values())


def _span(ends: Tensor, num_queries: int, window: int | None, page_size: int) -> Tensor:
    """[R, C] positions to read, from the first page any query sees to the last, the same count for all."""
    first_seen = torch.zeros_like(ends) if window is None else (ends - num_queries - window + 1).clamp(min=0)
    first = first_seen // page_size * page_size
    count = int((ends - first).max())
    count = -(-count // page_size) * page_size
    return first[:, None] + torch.arange(count, device=ends.device)


def _gather(pages: Tensor, tables: Tensor, span: Tensor) -> Tensor:
    """[R, K, C, D] fp32 of the positions in `span`, whole pages."""
    heads, page_size = pages.shape[1:3]
    numbers = (span[:, ::page_size] // page_size).clamp(max=tables.shape[1] - 1)
    rows = tables.gather(1, numbers)[:, None, :] * heads + torch.arange(heads, device=pages.device)[:, None]
    return pages.flatten(0, 1)[rows].flatten(2, 3).float()


def _mask(span: Tensor, ends: Tensor, num_queries: int, window: int | None) -> Tensor:
    """[R, t, C] true where a query sees a key."""
    queries = (ends - num_queries)[:, None, None] + torch.arange(num_queries, device=ends.device)[:, None]
    keys = span[:, None, :]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sinks: Tensor | None, scale: float) -> Tensor:
    """[R, t, Q, D] from q of that shape, keys and values [R, K, C, D] and mask [R, t, C]."""
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
    mixed: Tensor = (weights.flatten(2, 3) @ values).unflatten(2, (-1, num_queries)) / total
    back: Tensor = mixed.permute(0, 3, 1, 2, 4).reshape(requests, num_queries, heads, dim)
    return back.to(q.dtype)


@attention.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    cases = {  # label: (page size, window, (queries, tokens held) of each request)
        "decode full": (64, None, ((1, 1), (1, 64), (1, 65), (1, 300))),
        "decode window": (16, 128, ((1, 1), (1, 128), (1, 129), (1, 300))),
        "prefill full": (64, None, ((65, 65), (3, 200), (129, 300))),
        "prefill window": (64, 128, ((65, 65), (3, 200), (257, 300))),
        "mixed with an empty request": (16, 128, ((1, 200), (0, 7), (33, 150))),
    }
    for label, (page_size, window, lens) in cases.items():
        for sinks in (True, False):
            args = _sample_args(page_size, lens, generator, device)
            sink_logits = torch.randn(64, device=device, generator=generator).mul(3).bfloat16()
            suffix = "" if sinks else ", no sinks"
            yield Sample(label + suffix, (*args, sink_logits if sinks else None, window, 0.125))


def _sample_args(
    page_size: int, lens: tuple[tuple[int, int], ...], generator: torch.Generator, device: torch.device
) -> tuple[Tensor, ...]:
    """Pages are dealt out at random; the slots no request owns hold NaN, which must not come through."""
    needed = [-(-held // page_size) for _, held in lens]
    order = torch.randperm(sum(needed) + 3, device=device, generator=generator)
    table = torch.zeros(len(lens), max(needed), dtype=torch.int64, device=device)
    k_pages, v_pages = torch.full((2, len(order), 8, page_size, 64), float("nan"), device=device).bfloat16()
    taken = 0
    for request, (count, (_, held)) in enumerate(zip(needed, lens, strict=True)):
        table[request, :count] = order[taken : taken + count]
        taken += count
        slots = table[request, torch.arange(held, device=device) // page_size] * page_size
        slots += torch.arange(held, device=device) % page_size
        for pages in (k_pages, v_pages):
            fresh = torch.randn(held, 8, 64, device=device, generator=generator).bfloat16()
            pages[slots // page_size, :, slots % page_size] = fresh
    query_lens = torch.tensor([0, *(queries for queries, _ in lens)], device=device)
    q = torch.randn(int(query_lens.sum()), 64, 64, device=device, generator=generator).bfloat16()
    kv_lens = torch.tensor([held for _, held in lens], device=device)
    return q, k_pages, v_pages, table, query_lens.cumsum(0), kv_lens
