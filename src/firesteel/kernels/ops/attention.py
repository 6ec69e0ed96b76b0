"""Causal attention over paged keys and values, with sinks and an optional sliding window.

in   AttentionOperands
out  y  [T, Q, D]  zero in rows that belong to no request
Computed in fp32, rounded once on store.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.device import count_sms, find_capability
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import DeviceCode, Sample, define_op
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.profile import ATTENTION, OpProfile
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.shapes import MOST_DECODED, PAGE_SIZE, ModelShapes, WorkloadPart
from firesteel.kernels.ops.attention_tiles import (
    DECODE_QUERIES,
    LEAST_KEYS,
    Shapes,
    Tiles,
    cut_decode,
    cut_prefill,
)
from firesteel.kernels.tiles.launch import launch_kernel, power_of_two

QUERIES_AT_ONCE = 128  # bounds the score matrix of a long prompt
MERGE_WARPS = 2
MOST_CUTS = 4096  # kept: every length of a prompt has its own
OLDER_SMS = 108  # an A100's: proofs for GPUs before Hopper are for as many
CONTEXTS = (2048, 8192)  # tokens that a decoded request of a workload holds
SHORTEST_PROMPT = 64  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOperands(Operands):
    q: Tensor  # [T, Q, D]; rows of request r: query_starts[r] to query_starts[r+1]
    k_pages: Tensor  # [P, K, S, D]; Q/K query heads share a kv head
    v_pages: Tensor  # [P, K, S, D]
    page_table: Tensor  # [R, N] int64; entries wholly before the window are never read
    query_starts: Tensor  # [R+1] int64; rows from the last one on belong to no request
    kv_lens: Tensor  # [R] int64; the queries are the last tokens of each request
    sinks: Tensor | None  # [Q], a logit per query head that joins the denominator only
    window: int | None  # the number of tokens seen, the token itself included; None is all
    scale: float  # of the products, not of the sinks
    key_scale: float = 1.0  # what keys were divided by when they were stored; it does not apply to the sinks
    value_scale: float = 1.0  # the same for values


def _bytes(operands: AttentionOperands) -> int:
    kv_lens, k_pages, window = operands.kv_lens, operands.k_pages, operands.window
    query_lens = operands.query_starts.diff()
    seen = kv_lens if window is None else kv_lens.minimum(query_lens + window - 1)
    token_bytes = k_pages.shape[1] * k_pages.shape[3] * k_pages.element_size()
    return 2 * operands.q.nbytes + 2 * int(seen.sum()) * token_bytes


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=2, why="probabilities may be rounded to bf16 before the product"),
    keeps_choice=True,
    profile=OpProfile(ATTENTION, reads="attention", kernels={"attend": "attention", "merge": ""}),
)
def attention(operands: AttentionOperands) -> Tensor:
    q, k_pages, v_pages, window = operands.q, operands.k_pages, operands.v_pages, operands.window
    y = torch.zeros_like(q)
    starts, lens = operands.query_starts.tolist(), operands.kv_lens.tolist()
    scale = operands.scale * operands.key_scale
    for requests in _alike(starts, lens):
        num_queries = starts[requests[0] + 1] - starts[requests[0]]
        for begin in range(0, num_queries, QUERIES_AT_ONCE):
            end = min(begin + QUERIES_AT_ONCE, num_queries)
            rows = torch.tensor([range(starts[r] + begin, starts[r] + end) for r in requests], device=q.device)
            ends = torch.tensor([lens[r] - num_queries + end for r in requests], device=q.device)
            span = _span(ends, end - begin, window, k_pages.shape[2])
            tables = operands.page_table[requests]
            keys, values = _gather(k_pages, tables, span), _gather(v_pages, tables, span)
            seen = _mask(span, ends, end - begin, window)
            y[rows] = _attend(q[rows], keys, values, seen, operands.sinks, scale, operands.value_scale)
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


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sinks: Tensor | None, scale: float, value_scale: float
) -> Tensor:
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
    mixed: Tensor = (weights.flatten(2, 3) @ values).unflatten(2, (-1, num_queries)) / total * value_scale
    back: Tensor = mixed.permute(0, 3, 1, 2, 4).reshape(requests, num_queries, heads, dim)
    return back.to(q.dtype)


def _refuse(operands: AttentionOperands) -> str | None:
    q, k_pages, v_pages, page_table = operands.q, operands.k_pages, operands.v_pages, operands.page_table
    kv_heads, page_size, dim = k_pages.shape[1:]
    if dim not in (32, 64, 128) or page_size not in (16, 32, 64, 128):
        return f"takes heads of 32, 64 or 128 and pages of 16, 32, 64 or 128, not {dim} and {page_size}"
    allowed = {torch.bfloat16: (torch.bfloat16, torch.float8_e4m3fn), torch.float32: (torch.float32,)}
    if k_pages.dtype != v_pages.dtype or k_pages.dtype not in allowed.get(q.dtype, ()):
        return f"takes bf16 on bf16 or fp8 e4m3 pages, or float32 throughout, not {q.dtype} on {k_pages.dtype}"
    if k_pages.element_size() == 1 and (find_capability(q.device) or (8, 9)) < (8, 9):
        return "takes fp8 pages from compute capability 8.9 on"
    inner = (page_size * dim, dim, 1)
    if q.stride()[1:] != inner[1:] or k_pages.stride()[1:] != inner or v_pages.stride() != k_pages.stride():
        return "takes contiguous heads and pages, keys and values laid out alike"
    whole = (operands.query_starts, operands.kv_lens, operands.sinks)
    if page_table.stride(1) != 1 or not all(tensor.is_contiguous() for tensor in whole if tensor is not None):
        return "takes contiguous rows of the page table, lengths and sinks"
    if q.shape[1] // kv_heads > 16 or operands.scale * operands.key_scale <= 0:
        return "takes up to 16 query heads for each kv head and a positive scale"
    return None


def _refuse_decode(operands: AttentionOperands) -> str | None:
    """Refuses by the mean number of queries: lengths lie on the GPU and are not read; any lengths are right."""
    num_queries, num_requests = operands.q.shape[0], operands.kv_lens.shape[0]
    if num_queries > DECODE_QUERIES * num_requests:
        return f"takes up to {DECODE_QUERIES} queries a request, not {num_queries} of {num_requests} requests"
    return _refuse(operands)


@attention.implementation("triton:decode", needs=triton_ready(), accepts=_refuse_decode)
def triton_decode(operands: AttentionOperands) -> Tensor:
    return launch(cut_decode, operands)


@attention.implementation("triton:prefill", needs=triton_ready(), accepts=_refuse)
def triton_prefill(operands: AttentionOperands) -> Tensor:
    return launch(cut_prefill, operands)


@functools.lru_cache(MOST_CUTS)
def _cut(
    cut: Callable[[Shapes], Tiles],
    q_shape: tuple[int, ...],
    element_bytes: int,
    pages_shape: tuple[int, ...],
    table_shape: tuple[int, ...],
    window: int | None,
    device: torch.device,
) -> tuple[Shapes, Tiles]:
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


def launch(cut: Callable[[Shapes], Tiles], operands: AttentionOperands) -> Tensor:
    """Launches one kernel, and a second to merge if the keys are split. The grids follow from shapes alone."""
    from firesteel.kernels.triton import attention as device

    q, k_pages, page_table, window = operands.q, operands.k_pages, operands.page_table, operands.window
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0] == 0:
        return y
    sizes = (q.shape, q.element_size(), k_pages.shape, page_table.shape, window, q.device)
    shapes, tiles = _cut(cut, *sizes)
    parts, logs = y, None
    if tiles.splits > 1:
        parts = torch.empty(*q.shape[:2], tiles.splits, shapes.dim, dtype=torch.float32, device=q.device)
        logs = torch.empty(parts.shape[:3], dtype=torch.float32, device=q.device)
    launch_kernel(
        device.attend,
        (shapes.kv_heads, tiles.count(shapes), tiles.splits),
        parts,
        logs,
        q,
        k_pages,
        operands.v_pages,
        page_table,
        operands.query_starts,
        operands.kv_lens,
        operands.sinks,
        shapes.num_requests,
        q.shape[0],
        page_table.stride(0),
        operands.scale * operands.key_scale * math.log2(math.e),
        operands.value_scale,
        **_constants(tiles, q, k_pages, window),
        tile=tiles,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    if logs is not None:
        launch_kernel(
            device.merge,
            tuple(q.shape[:2]),
            y,
            parts,
            logs,
            operands.sinks,
            operands.value_scale,
            D=shapes.dim,
            SPLITS=tiles.splits,
            SPLIT_ROWS=power_of_two(tiles.splits),
            num_warps=MERGE_WARPS,
        )
    return y


def _constants(tiles: Tiles, q: Tensor, k_pages: Tensor, window: int | None) -> dict[str, int]:
    return {
        "HEADS": q.shape[1] // k_pages.shape[1],
        "HEAD_ROWS": tiles.head_rows,
        "D": q.shape[2],
        "Q_STRIDE": q.stride(0),
        "PAGE_SIZE": k_pages.shape[2],
        "PAGE_STRIDE": k_pages.stride(0),
        "WINDOW": window or 0,
        "SPLITS": tiles.splits,
        "TILE_QUERIES": tiles.queries,
        "TILE_KEYS": tiles.keys,
        "LEAST_KEYS": LEAST_KEYS,
    }


attention.prefer("triton:decode", "triton:prefill")


@attention.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    """gpt-oss, pages of 64: a prompt of 8192, and requests of 8192 tokens, 32 with 1 or 4 queries each or one."""
    from firesteel.kernels.stream.plan import SM_COUNTS

    real = Shapes(
        num_queries=32,
        num_requests=32,
        heads=64,
        kv_heads=8,
        dim=64,
        element_bytes=2,
        longest=8192,
        window=None,
        num_sms=SM_COUNTS.get(capability, OLDER_SMS),
    )
    alone = replace(real, num_queries=1, num_requests=1)
    for window in (None, 128):
        seen = "full" if window is None else "window"
        prefill = cut_prefill(replace(real, num_queries=8192, num_requests=1, window=window))
        decode = cut_decode(replace(real, window=window))
        yield _attend_code(f"triton:prefill {seen}", prefill, window)
        yield _attend_code(f"triton:decode {seen}", decode, window)
        yield _attend_code(
            f"triton:decode {seen}, 4 queries", cut_decode(replace(real, num_queries=128, window=window)), window
        )
        if capability >= (8, 9):
            yield _attend_code(f"triton:prefill {seen}, fp8-pages", prefill, window, torch.float8_e4m3fn)
            yield _attend_code(f"triton:decode {seen}, fp8-pages", decode, window, torch.float8_e4m3fn)
    yield _attend_code("triton:decode full, 1 request", cut_decode(alone), None)
    yield _merge_code("triton:decode merge", cut_decode(real).splits)
    yield _merge_code("triton:decode merge, 1 request", cut_decode(alone).splits)


def _attend_code(variant: str, tiles: Tiles, window: int | None, pages: torch.dtype = torch.bfloat16) -> DeviceCode:
    from firesteel.kernels.triton import attention as device

    q, k_pages = torch.empty(1, 64, 64, dtype=torch.bfloat16), torch.empty(1, 8, 64, 64, dtype=pages)
    inputs = dict.fromkeys(("q", "sinks"), "*bf16")
    inputs |= dict.fromkeys(("k_pages", "v_pages"), "*bf16" if pages == torch.bfloat16 else "*fp8e4nv")
    inputs |= dict.fromkeys(("page_table", "query_starts", "kv_lens"), "*i64")
    inputs |= dict.fromkeys(("num_requests", "num_tokens", "table_stride"), "i32")
    inputs |= {"scale": "fp32", "value_scale": "fp32"}
    results = {"out": "*bf16"} if tiles.splits == 1 else {"out": "*fp32", "logs": "*fp32"}
    absent = {"logs": None} if tiles.splits == 1 else {}
    return DeviceCode(
        variant=variant,
        kernel=device.attend,
        signature=results | inputs,
        constants=_constants(tiles, q, k_pages, window) | absent,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def _merge_code(variant: str, splits: int) -> DeviceCode:
    from firesteel.kernels.triton import attention as device

    return DeviceCode(
        variant=variant,
        kernel=device.merge,
        signature={"y": "*bf16", "parts": "*fp32", "logs": "*fp32", "sinks": "*bf16", "value_scale": "fp32"},
        constants={"D": 64, "SPLITS": splits, "SPLIT_ROWS": splits},
        num_warps=MERGE_WARPS,
    )


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
        for has_sinks in (True, False):
            operands = _sample_operands(page_size, lens, window, generator, device)
            sinks = torch.randn(64, device=device, generator=generator).mul(3).bfloat16()
            suffix = "" if has_sinks else ", no sinks"
            yield Sample(label + suffix, (replace(operands, sinks=sinks if has_sinks else None),))
        if "full" in label:  # scales that must not apply to the sinks, which are as large as the scores
            stored = replace(
                operands,
                k_pages=operands.k_pages.float().mul(16).to(torch.float8_e4m3fn),
                v_pages=operands.v_pages.float().mul(16).to(torch.float8_e4m3fn),
                sinks=sinks,
                key_scale=0.0625,
                value_scale=3.0,
            )
            yield Sample(f"{label}, fp8 pages with scales", (stored,))


def _sample_operands(
    page_size: int,
    lens: tuple[tuple[int, int], ...],
    window: int | None,
    generator: torch.Generator,
    device: torch.device,
) -> AttentionOperands:
    """Deals out pages at random; slots that no request owns hold NaN, which must not come through."""
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
    return AttentionOperands(
        q=q,
        k_pages=k_pages,
        v_pages=v_pages,
        page_table=table,
        query_starts=query_lens.cumsum(0),
        kv_lens=torch.tensor([held for _, held in lens], device=device),
        sinks=None,
        window=window,
        scale=0.125,
    )


@attention.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Yields decoding of M requests with one query each, and the prefill of one prompt of M tokens."""
    spec = shapes.spec
    window = next((window for window in spec.windows if window is not None), None)
    contexts = [context for context in CONTEXTS if context <= spec.max_context] or [spec.max_context]
    if m <= MOST_DECODED:
        for context in contexts:
            yield _attend_part(shapes, f"decode full {context}", m, 1, context, None)
        if window is not None:
            yield _attend_part(shapes, f"decode window {contexts[-1]}", m, 1, contexts[-1], window)
    if SHORTEST_PROMPT <= m <= spec.max_context:
        yield _attend_part(shapes, "prefill full", 1, m, m, None)
        if window is not None:
            yield _attend_part(shapes, "prefill window", 1, m, m, window)


def _attend_part(
    shapes: ModelShapes, label: str, requests: int, queries: int, held: int, window: int | None
) -> WorkloadPart:
    """Returns equal requests with `held` tokens each, whose last `queries` ask; unseen pages are not made."""
    spec = shapes.spec
    first = max(0, held - queries + 1 - window) // PAGE_SIZE if window is not None else 0
    pages = -(-held // PAGE_SIZE)
    made = requests * (pages - first)

    def draw() -> tuple[AttentionOperands]:
        table = torch.zeros(requests, pages, dtype=torch.int64, device=shapes.device)
        table[:, first:] = shapes.permutation(made).view(requests, -1)
        operands = AttentionOperands(
            q=shapes.normal(requests * queries, spec.num_heads, spec.head_dim),
            k_pages=shapes.normal(made, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            v_pages=shapes.normal(made, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            page_table=table,
            query_starts=torch.arange(0, requests * queries + 1, queries, device=shapes.device),
            kv_lens=torch.full((requests,), held, device=shapes.device),
            sinks=shapes.bias(spec.num_heads),
            window=window,
            scale=spec.head_dim**-0.5,
        )
        return (operands,)

    seen = sum(min(held - queries + 1 + number, window or held) for number in range(queries))
    flops = 4.0 * requests * seen * spec.q_size
    return WorkloadPart(label, flops, made * PAGE_SIZE * shapes.token_bytes(), draw)
