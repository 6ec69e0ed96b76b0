"""Flash attention over pages in one kernel, and the merge of its partial results.

A tile is TILE_QUERIES consecutive queries of one request times the query heads of one kv head, HEAD_ROWS rows per
query (HEADS of them real): all share the keys they read. Request r's first tile is number
(query_starts[r] + r * (TILE_QUERIES - 1)) // TILE_QUERIES, which leaves room for every request's last, partly
filled tile whatever the lengths, so that the grid size depends on shapes only. Scores are in base 2: `scale` holds
log2(e) and the scale of the keys.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from firesteel.kernels.triton.arithmetic import dot, round_to

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)  # a maximum before any score: finite, so that exp2(-inf - LOWEST) is 0, not NaN
REQUESTS_AT_ONCE = tl.constexpr(128)


@triton.jit
def first_tile(start, request, TILE_QUERIES: tl.constexpr):
    return (start + request * (TILE_QUERIES - 1)) // TILE_QUERIES


@triton.jit
def find_request(query_starts, num_requests, tile, TILE_QUERIES: tl.constexpr):
    """Returns the last request whose first tile is not after `tile`. Reads all starts at once, without a search."""
    request = tl.full((), 0, tl.int32)
    for begin in range(1, num_requests, REQUESTS_AT_ONCE):
        requests = begin + tl.arange(0, REQUESTS_AT_ONCE)
        exists = requests < num_requests
        starts = tl.load(query_starts + requests, mask=exists, other=0).to(tl.int32)
        request += tl.sum((exists & (first_tile(starts, requests, TILE_QUERIES) <= tile)).to(tl.int32))
    return request


@triton.jit
def load_tile(pages, places, is_key, dtype: tl.constexpr, MASKED: tl.constexpr):
    """Loads [keys, D] in `dtype`; zero where there is no key, because unwritten slots may hold NaN."""
    x = tl.load(pages + places, mask=is_key[:, None], other=0.0) if MASKED else tl.load(pages + places)
    return x if x.dtype == dtype else x.to(tl.float32).to(dtype)


@triton.jit
def step(
    top,
    total,
    mixed,
    rows,
    k_pages,
    v_pages,
    page_row,
    begin,
    first_key,
    end_key,
    positions,
    scale,
    D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Adds the keys from `begin` on to the running maximum, sum and mixed values of each row."""
    keys = begin + tl.arange(0, TILE_KEYS)
    is_key = (keys >= first_key) & (keys < end_key)
    if TILE_KEYS <= PAGE_SIZE:  # `begin` is a multiple of TILE_KEYS: one page
        page = tl.load(page_row + begin // PAGE_SIZE).to(tl.int64)
        slots = page * PAGE_STRIDE + (begin % PAGE_SIZE + tl.arange(0, TILE_KEYS)) * D
    else:
        page = tl.load(page_row + keys // PAGE_SIZE, mask=is_key, other=0).to(tl.int64)
        slots = page * PAGE_STRIDE + keys % PAGE_SIZE * D
    places = slots[:, None] + tl.arange(0, D)[None, :]
    k = load_tile(k_pages, places, is_key, rows.dtype, MASKED)
    scores = dot(rows, tl.trans(k), tl.zeros([rows.shape[0], TILE_KEYS], tl.float32))
    if MASKED:
        sees = keys[None, :] <= positions[:, None]
        if WINDOW > 0:
            sees &= keys[None, :] > positions[:, None] - WINDOW
        scores = tl.where(sees & is_key[None, :], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    weights = tl.exp2(tl.fma(scores, scale, -new_top[:, None]))
    shrink = tl.exp2(top - new_top)
    v = load_tile(v_pages, places, is_key, rows.dtype, MASKED)
    mixed = dot(round_to(weights, rows.dtype), v, mixed * shrink[:, None])
    return new_top, tl.fma(total, shrink, tl.sum(weights, 1)), mixed


@triton.jit
def find_places(tokens, heads, HEADS: tl.constexpr, SPLITS: tl.constexpr):
    """Returns the index of this split's result for each row."""
    return (tokens * (tl.num_programs(0) * HEADS) + heads) * SPLITS + tl.program_id(2)


@triton.jit
def write_zero_rows(
    out,
    logs,
    kv_head,
    first_token,
    begin,
    end,
    HEADS: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
):
    """Makes the result zero for the tile's tokens from `begin` to `end`.

    Writes zeros, or logarithms that say that no key was seen.
    """
    row = tl.arange(0, TILE_QUERIES * HEAD_ROWS)
    tokens = first_token + row // HEAD_ROWS
    is_row = (tokens >= begin) & (tokens < end) & (row % HEAD_ROWS < HEADS)
    place = find_places(tokens.to(tl.int64), kv_head * HEADS + row % HEAD_ROWS, HEADS, SPLITS)
    if SPLITS > 1:
        tl.store(logs + place, float("-inf"), mask=is_row)
    else:
        zeros = tl.zeros([TILE_QUERIES * HEAD_ROWS, D], out.dtype.element_ty)
        tl.store(out + place[:, None] * D + tl.arange(0, D)[None, :], zeros, mask=is_row[:, None])


@triton.jit(do_not_specialize=["num_requests", "num_tokens", "table_stride"])
def attend(
    out,
    logs,
    q,
    k_pages,
    v_pages,
    page_table,
    query_starts,
    kv_lens,
    sinks,
    num_requests,
    num_tokens,
    table_stride,
    scale,
    value_scale,
    HEADS: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    D: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    LEAST_KEYS: tl.constexpr,
):
    """Attention kernel, grid [K, tiles, SPLITS]. WINDOW 0 means no window.

    Rows after the last request's, up to `num_tokens`, become zero.

    With SPLITS 1, `out` [T, Q, D] is the result. Otherwise each split of the keys writes its own softmax to `out`
    [T, Q, SPLITS, D] fp32 and the base-2 logarithm of its sum to `logs` [T, Q, SPLITS]. A split without keys writes
    -inf to `logs` and nothing to `out`. The merge applies the sinks and the scale of the values.
    """
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # later queries see more keys: longest tiles start first
    request = find_request(query_starts, num_requests, tile, TILE_QUERIES)
    start = tl.load(query_starts + request).to(tl.int32)
    num_queries = tl.load(query_starts + request + 1).to(tl.int32) - start
    first_query = (tile - first_tile(start, request, TILE_QUERIES)) * TILE_QUERIES
    if (request == num_requests - 1) & (first_query + TILE_QUERIES > num_queries):  # its tiles cover padding too
        write_zero_rows(
            out,
            logs,
            kv_head,
            start + first_query,
            start + num_queries,
            num_tokens,
            HEADS,
            HEAD_ROWS,
            D,
            SPLITS,
            TILE_QUERIES,
        )
    if first_query >= num_queries:
        return
    row = tl.arange(0, TILE_QUERIES * HEAD_ROWS)
    queries = first_query + row // HEAD_ROWS
    heads = kv_head * HEADS + row % HEAD_ROWS
    is_row = (queries < num_queries) & (row % HEAD_ROWS < HEADS)
    held = tl.load(kv_lens + request).to(tl.int32)
    positions = held - num_queries + queries
    tokens = (start + queries).to(tl.int64)
    columns = tl.arange(0, D)[None, :]
    rows = tl.load(q + (tokens * Q_STRIDE + heads * D)[:, None] + columns, mask=is_row[:, None], other=0.0)

    # The range of keys that any row sees, aligned to tiles of keys, and this split's share of it.
    first_position = held - num_queries + first_query
    end_key = tl.minimum(first_position + TILE_QUERIES, held)
    first_key = 0
    begin = 0
    if WINDOW > 0:
        ALIGNMENT: tl.constexpr = TILE_KEYS if TILE_KEYS < PAGE_SIZE else PAGE_SIZE
        first_key = tl.maximum(first_position - WINDOW + 1, 0)
        begin = first_key // ALIGNMENT * ALIGNMENT
    end = end_key
    if SPLITS > 1:
        share = tl.maximum(tl.cdiv(tl.cdiv(end_key - begin, SPLITS), TILE_KEYS) * TILE_KEYS, LEAST_KEYS)
        begin += tl.program_id(2) * share
        end = tl.minimum(begin + share, end_key)

    sink = tl.full([TILE_QUERIES * HEAD_ROWS], float("-inf"), tl.float32)
    if SPLITS == 1 and sinks is not None:
        sink = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    top = tl.maximum(sink, LOWEST)
    total = tl.exp2(sink - top)
    mixed = tl.zeros([TILE_QUERIES * HEAD_ROWS, D], tl.float32)
    k_head = k_pages + kv_head * (PAGE_SIZE * D)
    v_head = v_pages + kv_head * (PAGE_SIZE * D)
    page_row = page_table + request.to(tl.int64) * table_stride
    if WINDOW == 0 and TILE_QUERIES * HEAD_ROWS > 16:  # keys visible to every row need no mask
        seen_by_all = begin + tl.maximum(tl.minimum(first_position + 1, end) - begin, 0) // TILE_KEYS * TILE_KEYS
        for key in range(begin, seen_by_all, TILE_KEYS):
            top, total, mixed = step(
                top,
                total,
                mixed,
                rows,
                k_head,
                v_head,
                page_row,
                key,
                first_key,
                end_key,
                positions,
                scale,
                D,
                PAGE_SIZE,
                PAGE_STRIDE,
                WINDOW,
                TILE_KEYS,
                False,
            )
        begin = seen_by_all
    for key in range(begin, end, TILE_KEYS):
        top, total, mixed = step(
            top,
            total,
            mixed,
            rows,
            k_head,
            v_head,
            page_row,
            key,
            first_key,
            end_key,
            positions,
            scale,
            D,
            PAGE_SIZE,
            PAGE_STRIDE,
            WINDOW,
            TILE_KEYS,
            True,
        )

    place = find_places(tokens, heads, HEADS, SPLITS)
    has_keys = total > 0
    total = tl.where(has_keys, total, 1.0)
    mixed = mixed / total[:, None]
    if SPLITS > 1:
        tl.store(logs + place, tl.where(has_keys, top + tl.log2(total), float("-inf")), mask=is_row)
        is_row &= has_keys
    else:
        mixed = mixed * value_scale
    tl.store(out + place[:, None] * D + columns, round_to(mixed, out.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def merge(y, parts, logs, sinks, value_scale, D: tl.constexpr, SPLITS: tl.constexpr, SPLIT_ROWS: tl.constexpr):
    """Merges the splits of one query and head with the sink; grid [T, Q]. SPLIT_ROWS is a power of 2."""
    head = tl.program_id(1)
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head
    split = tl.arange(0, SPLIT_ROWS)
    columns = tl.arange(0, D)
    log = tl.load(logs + place * SPLITS + split, mask=split < SPLITS, other=float("-inf"))
    has_keys = log > float("-inf")
    part = tl.load(
        parts + (place * SPLITS + split)[:, None] * D + columns[None, :], mask=has_keys[:, None], other=0.0
    )
    top = tl.maximum(tl.max(log, 0), LOWEST)
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2_E
        top = tl.maximum(top, sink)
    weights = tl.exp2(log - top)
    total = tl.sum(weights, 0)
    if sinks is not None:
        total += tl.exp2(sink - top)
    mixed = tl.sum(part * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(y + place * D + columns, round_to(mixed * value_scale, y.dtype.element_ty))
