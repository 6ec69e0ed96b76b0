"""Attention of prompts beside decoding requests: tiles of prompts, and splits by the real lengths.

A program computes what `plan_tiles` (attention_plan.py) lists for it. A tile with one split is finished by its
program. Several splits write their parts, which `merge_tiles` adds in ascending order. Nothing that depends on
lengths or on the size of a step is compiled in.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from firesteel.kernels.triton.arithmetic import round_to
from firesteel.kernels.triton.attention import LOG2_E, LOWEST, step, write_zero_rows


@triton.jit(do_not_specialize=["num_work", "num_requests", "num_tokens", "table_stride"])
def attend_mixed(
    y,
    parts,
    logs,
    work,
    num_work,
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
    TILE_QUERIES: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """Attention kernel without a window, grid [K, num_work].

    A tile with one split writes its rows of `y` [T, Q, D]. Each of several splits writes its own softmax to its
    slot of `parts` [slots, K, rows, D] fp32 and the base-2 logarithm of its sum to `logs` [slots, K, rows]; rows
    that see none of its keys have -inf there and nothing in `parts`. Rows of no request, up to `num_tokens`, become
    zero.
    """
    kv_head = tl.program_id(0)
    place = num_work - 1 - tl.program_id(1)  # later queries see more keys: longest tiles start first
    request = tl.load(work + place)
    first_query = tl.load(work + num_work + place)
    start = tl.load(query_starts + request).to(tl.int32)
    if request == num_requests:
        if start + first_query < num_tokens:
            write_zero_rows(
                y,
                logs,
                kv_head,
                start + first_query,
                start,
                num_tokens,
                HEADS,
                HEAD_ROWS,
                D,
                1,
                TILE_QUERIES,
            )
        return
    split = tl.load(work + 2 * num_work + place)
    splits = tl.load(work + 3 * num_work + place)
    num_queries = tl.load(query_starts + request + 1).to(tl.int32) - start
    held = tl.load(kv_lens + request).to(tl.int32)
    first_position = held - num_queries + first_query
    end_key = tl.minimum(first_position + TILE_QUERIES, held)
    share = tl.cdiv(tl.cdiv(end_key, splits), TILE_KEYS) * TILE_KEYS
    begin = split * share
    end = tl.minimum(begin + share, end_key)

    row = tl.arange(0, TILE_QUERIES * HEAD_ROWS)
    queries = first_query + row // HEAD_ROWS
    heads = kv_head * HEADS + row % HEAD_ROWS
    is_row = (queries < num_queries) & (row % HEAD_ROWS < HEADS)
    positions = held - num_queries + queries
    tokens = (start + queries).to(tl.int64)
    columns = tl.arange(0, D)[None, :]
    rows = tl.load(q + (tokens * Q_STRIDE + heads * D)[:, None] + columns, mask=is_row[:, None], other=0.0)

    sink = tl.full([TILE_QUERIES * HEAD_ROWS], float("-inf"), tl.float32)
    if sinks is not None:  # with several splits the merge adds them
        sink = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        sink = tl.where(splits == 1, sink, float("-inf"))
    top = tl.maximum(sink, LOWEST)
    total = tl.exp2(sink - top)
    mixed = tl.zeros([TILE_QUERIES * HEAD_ROWS, D], tl.float32)
    k_head = k_pages + kv_head * (PAGE_SIZE * D)
    v_head = v_pages + kv_head * (PAGE_SIZE * D)
    page_row = page_table + request.to(tl.int64) * table_stride
    seen_by_all = begin + tl.maximum(tl.minimum(first_position + 1, end) - begin, 0) // TILE_KEYS * TILE_KEYS
    for key in range(begin, seen_by_all, TILE_KEYS):  # visible to every row: no mask
        top, total, mixed = step(
            top,
            total,
            mixed,
            rows,
            k_head,
            v_head,
            page_row,
            key,
            0,
            end_key,
            positions,
            scale,
            D,
            PAGE_SIZE,
            PAGE_STRIDE,
            0,
            TILE_KEYS,
            False,
        )
    for key in range(seen_by_all, end, TILE_KEYS):
        top, total, mixed = step(
            top,
            total,
            mixed,
            rows,
            k_head,
            v_head,
            page_row,
            key,
            0,
            end_key,
            positions,
            scale,
            D,
            PAGE_SIZE,
            PAGE_STRIDE,
            0,
            TILE_KEYS,
            True,
        )

    has_keys = total > 0
    total = tl.where(has_keys, total, 1.0)
    mixed = mixed / total[:, None]
    if splits == 1:
        whole = round_to(mixed * value_scale, y.dtype.element_ty)
        out = (tokens * (tl.num_programs(0) * HEADS) + heads)[:, None] * D + columns
        tl.store(y + out, whole, mask=is_row[:, None])
    else:
        part = find_parts(tl.load(work + 4 * num_work + place) + split, HEAD_ROWS, TILE_QUERIES)
        tl.store(logs + part, tl.where(has_keys, top + tl.log2(total), float("-inf")), mask=is_row)
        is_row &= has_keys
        tl.store(parts + part[:, None] * D + columns, mixed, mask=is_row[:, None])


@triton.jit
def find_parts(slot, HEAD_ROWS: tl.constexpr, TILE_QUERIES: tl.constexpr):
    """Returns the indices of a tile's rows in a slot, of the kv head that this program computes."""
    row = tl.arange(0, TILE_QUERIES * HEAD_ROWS)
    return (slot.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (TILE_QUERIES * HEAD_ROWS) + row


@triton.jit(do_not_specialize=["num_work"])
def merge_tiles(
    y,
    parts,
    logs,
    work,
    num_work,
    query_starts,
    sinks,
    value_scale,
    HEADS: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    D: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
):
    """Merges the splits of one tile with the sinks; grid [K, num_work]. The program of split 0 does it."""
    kv_head = tl.program_id(0)
    place = tl.program_id(1)
    splits = tl.load(work + 3 * num_work + place)
    if (splits == 1) | (tl.load(work + 2 * num_work + place) > 0):
        return
    request = tl.load(work + place)
    first_query = tl.load(work + num_work + place)
    slot = tl.load(work + 4 * num_work + place)
    start = tl.load(query_starts + request).to(tl.int32)
    num_queries = tl.load(query_starts + request + 1).to(tl.int32) - start
    row = tl.arange(0, TILE_QUERIES * HEAD_ROWS)
    queries = first_query + row // HEAD_ROWS
    heads = kv_head * HEADS + row % HEAD_ROWS
    is_row = (queries < num_queries) & (row % HEAD_ROWS < HEADS)
    columns = tl.arange(0, D)[None, :]
    sink = tl.full([TILE_QUERIES * HEAD_ROWS], float("-inf"), tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    top = tl.maximum(sink, LOWEST)
    total = tl.exp2(sink - top)
    mixed = tl.zeros([TILE_QUERIES * HEAD_ROWS, D], tl.float32)
    for split in range(splits):
        place_of_part = find_parts(slot + split, HEAD_ROWS, TILE_QUERIES)
        log = tl.load(logs + place_of_part, mask=is_row, other=float("-inf"))
        part_rows = place_of_part[:, None] * D + columns
        part = tl.load(parts + part_rows, mask=(log > float("-inf"))[:, None], other=0.0)
        new_top = tl.maximum(top, log)
        shrink = tl.exp2(top - new_top)
        weight = tl.exp2(log - new_top)
        total = total * shrink + weight
        mixed = mixed * shrink[:, None] + part * weight[:, None]
        top = new_top
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None] * value_scale
    out = ((start + queries).to(tl.int64) * (tl.num_programs(0) * HEADS) + heads)[:, None] * D + columns
    tl.store(y + out, round_to(mixed, y.dtype.element_ty), mask=is_row[:, None])
