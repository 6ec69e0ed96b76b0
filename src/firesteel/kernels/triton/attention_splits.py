"""Flash attention whose order of summation follows from a query's position alone: splits at fixed positions.

Keys are divided into splits from position 0 on: 2 * PER_OCTAVE of SPLIT_KEYS keys, then PER_OCTAVE of twice as many
keys, and so on, so that none is a large share of a long text. A split starts from an empty state (maximum, sum,
mixture) and adds its tiles in ascending order. The states of all splits are folded into that of the sink, in
ascending order and by one formula. One program may fold them as it goes along, or several may store them for
`merge_splits`: both are the same operations, each rounded alike, because no product is left for a compiler to
contract with a sum.

A split that a row does not see has weight 0, a sum of 0 and a mixture of 0: folding it in changes nothing.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from firesteel.kernels.triton.arithmetic import round_to
from firesteel.kernels.triton.attention import LOG2_E, LOWEST, find_request, first_tile, step

MOST_OCTAVES = tl.constexpr(18)  # after which 32-bit positions end
AT_ONCE = tl.constexpr(8)  # parts that the merge loads together


@triton.jit
def find_split(position, SPLIT_KEYS: tl.constexpr, PER_OCTAVE: tl.constexpr):
    """Returns the number of the split that holds the key at `position`."""
    position = tl.full((), 0, tl.int32) + position  # a number in the interpreter's loops
    octave = tl.full((), 0, tl.int32)
    for number in tl.static_range(MOST_OCTAVES):
        octave += (position // (2 * PER_OCTAVE * SPLIT_KEYS) >= (1 << number)).to(tl.int32)
    return (position // SPLIT_KEYS >> octave) + PER_OCTAVE * octave


@triton.jit
def find_begin(split, SPLIT_KEYS: tl.constexpr, PER_OCTAVE: tl.constexpr):
    """Returns the position of the first key of a split."""
    split = tl.full((), 0, tl.int32) + split
    octave = tl.maximum(split // PER_OCTAVE - 1, 0)
    return ((split - PER_OCTAVE * octave) << octave) * SPLIT_KEYS


@triton.jit
def find_weights(all_top, top):
    """Returns the common maximum, and by what each of two states is multiplied before they are added."""
    new_top = tl.maximum(all_top, top)
    return new_top, tl.exp2(all_top - new_top), tl.exp2(top - new_top)


@triton.jit
def load_sinks(sinks, heads, is_row):
    """Returns the maximum and the sum of the state that holds the sink alone, or nothing."""
    sink = tl.full(heads.shape, float("-inf"), tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    top = tl.maximum(sink, LOWEST)
    return top, tl.exp2(sink - top)


@triton.jit
def find_factor(total, value_scale):
    """Returns what a mixture is multiplied by in the end."""
    return tl.div_rn(tl.zeros_like(total) + value_scale, tl.where(total > 0, total, 1.0))


@triton.jit
def add_keys(
    all_top,
    all_total,
    all_mixed,
    rows,
    k_head,
    v_head,
    page_row,
    begin,
    end,
    first_key,
    first_position,
    end_key,
    positions,
    scale,
    D: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    PER_OCTAVE: tl.constexpr,
    FOLDS: tl.constexpr,
):
    """Returns what is folded so far, and the state of the split that the last key is in.

    The keys are one split's, or, with FOLDS, those of all splits: then each is folded when the next one begins.
    """
    top = tl.full(positions.shape, LOWEST, tl.float32)
    total = tl.zeros(positions.shape, tl.float32)
    mixed = tl.zeros([positions.shape[0], D], tl.float32)
    split_end = find_begin(find_split(begin, SPLIT_KEYS, PER_OCTAVE) + 1, SPLIT_KEYS, PER_OCTAVE)
    seen_by_all = begin  # keys visible to every row need no mask
    if WINDOW == 0:
        seen_by_all += tl.maximum(tl.minimum(first_position + 1, end) - begin, 0) // TILE_KEYS * TILE_KEYS
    for part in tl.static_range(2):
        for key in range(begin if part == 0 else seen_by_all, seen_by_all if part == 0 else end, TILE_KEYS):
            if FOLDS:  # noqa: SIM102  (a constant, and a number of the GPU)
                if key == split_end:
                    all_top, kept, added = find_weights(all_top, top)
                    all_total = tl.fma(all_total, kept, total * added)
                    all_mixed = tl.fma(all_mixed, kept[:, None], mixed * added[:, None])
                    top = tl.full(positions.shape, LOWEST, tl.float32)
                    total = tl.zeros(positions.shape, tl.float32)
                    mixed = tl.zeros([positions.shape[0], D], tl.float32)
                    split_end = find_begin(find_split(key, SPLIT_KEYS, PER_OCTAVE) + 1, SPLIT_KEYS, PER_OCTAVE)
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
                part == 1,
            )
    return all_top, all_total, all_mixed, top, total, mixed


@triton.jit(do_not_specialize=["num_requests", "num_tokens", "table_stride", "num_parts"])
def attend_splits(
    out,
    tops,
    totals,
    counts,
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
    num_parts,
    scale,
    value_scale,
    HEADS: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    D: tl.constexpr,
    Q_STRIDE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    PER_OCTAVE: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Attention kernel, grid [K, tiles, programs of a tile]. WINDOW 0 means no window.

    Without PARTS a tile's one program folds all splits, and `out` [T, Q, D] is the result: zero in rows after the
    last request's, up to `num_tokens`. With PARTS program p stores the states of splits p, p + programs, ... in
    `out` [T, Q, num_parts, D] fp32, `tops` and `totals` [T, Q, num_parts], and their number in `counts` [T].
    """
    tl.static_assert(WINDOW == 0 or not PARTS)
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # later queries see more keys: longest tiles start first
    request = find_request(query_starts, num_requests, tile, TILE_QUERIES)
    start = tl.load(query_starts + request).to(tl.int32)
    num_queries = tl.load(query_starts + request + 1).to(tl.int32) - start
    first_query = (tile - first_tile(start, request, TILE_QUERIES)) * TILE_QUERIES
    row = tl.arange(0, TILE_QUERIES * HEAD_ROWS)
    queries = first_query + row // HEAD_ROWS
    heads = kv_head * HEADS + row % HEAD_ROWS
    is_head = row % HEAD_ROWS < HEADS
    is_row = (queries < num_queries) & is_head
    tokens = (start + queries).to(tl.int64)
    places = tokens * (tl.num_programs(0) * HEADS) + heads
    columns = tl.arange(0, D)[None, :]
    if (request == num_requests - 1) & (first_query + TILE_QUERIES > num_queries):  # its tiles cover padding too
        is_padding = (queries >= num_queries) & (tokens < num_tokens) & is_head
        if PARTS:
            tl.store(counts + tokens, tl.zeros_like(row), mask=is_padding & (heads == 0))
        else:
            zeros = tl.zeros([TILE_QUERIES * HEAD_ROWS, D], out.dtype.element_ty)
            tl.store(out + places[:, None] * D + columns, zeros, mask=is_padding[:, None])
    if first_query >= num_queries:
        return
    held = tl.load(kv_lens + request).to(tl.int32)
    positions = held - num_queries + queries
    rows = tl.load(q + (tokens * Q_STRIDE + heads * D)[:, None] + columns, mask=is_row[:, None], other=0.0)
    first_position = held - num_queries + first_query
    end_key = tl.minimum(first_position + TILE_QUERIES, held)
    first_key = 0
    begin = 0
    if WINDOW > 0:
        first_key = tl.maximum(first_position - WINDOW + 1, 0)
        begin = first_key // TILE_KEYS * TILE_KEYS
    k_head = k_pages + kv_head * (PAGE_SIZE * D)
    v_head = v_pages + kv_head * (PAGE_SIZE * D)
    page_row = page_table + request.to(tl.int64) * table_stride

    all_top, all_total = load_sinks(sinks, heads, is_row)
    all_mixed = tl.zeros([TILE_QUERIES * HEAD_ROWS, D], tl.float32)
    num_splits = 1  # for the loop; without PARTS all splits are folded in one pass
    if PARTS:
        num_splits = find_split(end_key - 1, SPLIT_KEYS, PER_OCTAVE) + 1
        if tl.program_id(2) == 0:
            tl.store(counts + tokens, tl.zeros_like(row) + num_splits, mask=is_row & (heads == 0))
    for split in tl.range(tl.program_id(2), num_splits, tl.num_programs(2), disable_licm=True):  # saves registers
        end = end_key
        if PARTS:
            begin = find_begin(split, SPLIT_KEYS, PER_OCTAVE)
            end = tl.minimum(find_begin(split + 1, SPLIT_KEYS, PER_OCTAVE), end_key)
        all_top, all_total, all_mixed, top, total, mixed = add_keys(
            all_top,
            all_total,
            all_mixed,
            rows,
            k_head,
            v_head,
            page_row,
            begin,
            end,
            first_key,
            first_position,
            end_key,
            positions,
            scale,
            D,
            PAGE_SIZE,
            PAGE_STRIDE,
            WINDOW,
            TILE_KEYS,
            SPLIT_KEYS,
            PER_OCTAVE,
            not PARTS,
        )
        if PARTS:
            part = places * num_parts + split
            tl.store(tops + part, top, mask=is_row)
            tl.store(totals + part, total, mask=is_row)
            tl.store(out + part[:, None] * D + columns, mixed, mask=is_row[:, None])
        else:
            all_top, kept, added = find_weights(all_top, top)
            all_total = tl.fma(all_total, kept, total * added)
            all_mixed = tl.fma(all_mixed, kept[:, None], mixed * added[:, None])
            y = tl.fma(all_mixed, find_factor(all_total, value_scale)[:, None], 0.0)
            tl.store(out + places[:, None] * D + columns, round_to(y, out.dtype.element_ty), mask=is_row[:, None])


@triton.jit(do_not_specialize=["num_parts"])
def merge_splits(y, parts, tops, totals, counts, sinks, num_parts, value_scale, D: tl.constexpr):
    """Folds the splits of one query and head into its sink, in ascending order; grid [T, Q]."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    place = token.to(tl.int64) * tl.num_programs(1) + head
    columns = tl.arange(0, D)
    all_top, all_total = load_sinks(sinks, head, head >= 0)
    all_mixed = tl.zeros([D], tl.float32)
    count = tl.load(counts + token)
    for begin in range(0, count, AT_ONCE):
        for number in tl.static_range(AT_ONCE):
            is_part = begin + number < count
            part = place * num_parts + begin + number
            top = tl.load(tops + part, mask=is_part, other=LOWEST)
            total = tl.load(totals + part, mask=is_part, other=0.0)
            mixed = tl.load(parts + part * D + columns, mask=columns * 0 + begin + number < count, other=0.0)
            all_top, kept, added = find_weights(all_top, top)
            all_total = tl.fma(all_total, kept, total * added)
            all_mixed = tl.fma(all_mixed, kept, mixed * added)
    result = tl.fma(all_mixed, find_factor(all_total, value_scale), 0.0)
    tl.store(y + place * D + columns, round_to(result, y.dtype.element_ty))
