"""Lists the work of attention of prompts beside decoding requests, on the device, once per call.

The list says which tile of which request a program computes, and which of its splits. Only requests that are short
of queries, and so of tiles, are split, and only as far as there are slots for their parts.
"""
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

from firesteel.kernels.triton.attention import REQUESTS_AT_ONCE

PLANNED = tl.constexpr(32)  # programs of `attend_mixed` that a program of `plan_tiles` plans


@triton.jit
def count_work(
    query_starts,
    kv_lens,
    requests,
    num_requests,
    split_keys,
    SPLIT_QUERIES: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
):
    """Returns numbers of tiles, of splits per tile, and lengths; a request that does not exist has no tiles."""
    exists = requests < num_requests
    start = tl.load(query_starts + requests, mask=exists, other=0).to(tl.int32)
    end = tl.load(query_starts + requests + 1, mask=exists, other=0).to(tl.int32)
    held = tl.load(kv_lens + requests, mask=exists, other=0).to(tl.int32)
    splits = tl.where(end - start > SPLIT_QUERIES, 1, tl.maximum(tl.cdiv(held, split_keys), 1))
    return tl.cdiv(end - start, TILE_QUERIES), splits, held


@triton.jit(do_not_specialize=["num_requests", "num_work", "wanted", "slots", "least_keys", "most_keys"])
def plan_tiles(
    work,
    query_starts,
    kv_lens,
    num_requests,
    num_work,
    wanted,
    slots,
    least_keys,
    most_keys,
    SPLIT_QUERIES: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
):
    """Lists the work of `num_work` programs in `work` [5, num_work]; grid [num_work / PLANNED].

    The rows are request, first query in it, split, number of splits, and the slot of split 0. All tiles of a
    request have the same splits, of as many keys as leave `wanted` programs, but between `least_keys` and
    `most_keys`, and of more if there are not slots enough. After the last request's come tiles of the rows of no
    request, as those of one more request.
    """
    keys = tl.full((), 0, tl.int32)
    for begin in range(0, num_requests, REQUESTS_AT_ONCE):
        requests = begin + tl.arange(0, REQUESTS_AT_ONCE)
        tiles, _, held = count_work(
            query_starts, kv_lens, requests, num_requests, most_keys, SPLIT_QUERIES, TILE_QUERIES
        )
        keys += tl.sum(tiles * held)
    split_keys = tl.minimum(tl.maximum(tl.cdiv(keys, wanted), least_keys), most_keys)
    needed = tl.full((), 0, tl.int32)
    for begin in range(0, num_requests, REQUESTS_AT_ONCE):
        requests = begin + tl.arange(0, REQUESTS_AT_ONCE)
        tiles, splits, _ = count_work(
            query_starts, kv_lens, requests, num_requests, split_keys, SPLIT_QUERIES, TILE_QUERIES
        )
        needed += tl.sum(tl.where(splits > 1, tiles * splits, 0))
    if needed > slots:  # rounding up at most doubles a number of splits above 1
        split_keys *= tl.cdiv(2 * needed, slots)

    place = tl.program_id(0) * PLANNED + tl.arange(0, PLANNED)
    request = tl.zeros([PLANNED], tl.int32)
    first_place = tl.zeros([PLANNED], tl.int32)
    slot = tl.zeros([PLANNED], tl.int32)
    num_before = tl.full((), 0, tl.int32)
    slots_before = tl.full((), 0, tl.int32)
    for begin in range(0, num_requests, REQUESTS_AT_ONCE):
        requests = begin + tl.arange(0, REQUESTS_AT_ONCE)
        tiles, splits, _ = count_work(
            query_starts, kv_lens, requests, num_requests, split_keys, SPLIT_QUERIES, TILE_QUERIES
        )
        programs = tiles * splits
        parts = tl.where(splits > 1, programs, 0)
        ends = num_before + tl.cumsum(programs, 0)
        slot_ends = slots_before + tl.cumsum(parts, 0)
        is_before = (requests < num_requests)[None, :] & (ends[None, :] <= place[:, None])
        request += tl.sum(is_before.to(tl.int32), 1)
        first_place = tl.maximum(first_place, tl.max(tl.where(is_before, ends[None, :], 0), 1))
        slot = tl.maximum(slot, tl.max(tl.where(is_before, slot_ends[None, :], 0), 1))
        num_before += tl.sum(programs)
        slots_before += tl.sum(parts)
    _, splits, _ = count_work(query_starts, kv_lens, request, num_requests, split_keys, SPLIT_QUERIES, TILE_QUERIES)
    tile = (place - first_place) // splits
    is_planned = place < num_work
    tl.store(work + place, request, mask=is_planned)
    tl.store(work + num_work + place, tile * TILE_QUERIES, mask=is_planned)
    tl.store(work + 2 * num_work + place, (place - first_place) % splits, mask=is_planned)
    tl.store(work + 3 * num_work + place, splits, mask=is_planned)
    tl.store(work + 4 * num_work + place, slot + tile * splits, mask=is_planned)
