"""Causal attention over paged keys and values, with sinks and an optional sliding window.

in   AttentionOperands
out  y  [T, Q, D]  zero in rows that belong to no request
Computed in fp32, rounded once on store. `flashinfer` is a library's (kernels/libraries) and plans on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from firesteel.device import find_capability
from firesteel.kernels.fixed_rows import on_cpu
from firesteel.kernels.libraries.flashinfer import flashinfer_ready
from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.profile import ATTENTION, OpProfile
from firesteel.kernels.op.rows import Rows
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.ops import attention_library
from firesteel.kernels.ops.attention_fixed import attend_fixed, list_code, refuse_splits, run_splits
from firesteel.kernels.ops.attention_operands import (
    AttentionOperands,
    count_rows,
    keep_rows,
    list_samples,
    list_workloads,
)
from firesteel.kernels.ops.attention_reference import (
    attend_dense,
    find_span,
    gather_pages,
    group_alike,
    mask_seen,
)
from firesteel.kernels.ops.attention_tiles import (
    DECODE_QUERIES,
    LEAST_KEYS,
    Shapes,
    Tiles,
    cut_decode,
    cut_prefill,
    find_tiles,
    list_constants,
    list_factors,
    list_inputs,
)
from firesteel.kernels.ops.mixed.code import list_device_code
from firesteel.kernels.ops.mixed.cut import cut_whole
from firesteel.kernels.ops.mixed.launch import attend_mixed
from firesteel.kernels.tiles.launch import launch_kernel, power_of_two

QUERIES_AT_ONCE = 128  # bounds the score matrix of a long prompt
MERGE_WARPS = 2
OLDER_SMS = 108  # of an A100; assumed by proofs for GPUs before Hopper


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
    profile=OpProfile(
        ATTENTION,
        reads="attention",
        kernels=dict.fromkeys(("attend", "attend_mixed", "attend_splits"), "attention")
        | dict.fromkeys(("merge", "plan_tiles", "merge_tiles", "merge_splits"), ""),
    ),
    rows=Rows(count=count_rows, keep=keep_rows, results=lambda operands, result: [result[: count_rows(operands)]]),
)
def attention(operands: AttentionOperands) -> Tensor:
    q, k_pages, v_pages, window = operands.q, operands.k_pages, operands.v_pages, operands.window
    y = torch.zeros_like(q)
    starts, lens = operands.query_starts.tolist(), operands.kv_lens.tolist()
    scale = operands.scale * operands.key_scale
    for requests in group_alike(starts, lens):
        num_queries = starts[requests[0] + 1] - starts[requests[0]]
        for begin in range(0, num_queries, QUERIES_AT_ONCE):
            end = min(begin + QUERIES_AT_ONCE, num_queries)
            rows = torch.tensor([range(starts[r] + begin, starts[r] + end) for r in requests], device=q.device)
            ends = torch.tensor([lens[r] - num_queries + end for r in requests], device=q.device)
            span = find_span(ends, end - begin, window, k_pages.shape[2])
            tables = operands.page_table[requests]
            keys, values = gather_pages(k_pages, tables, span), gather_pages(v_pages, tables, span)
            seen = mask_seen(span, ends, end - begin, window)
            y[rows] = attend_dense(q[rows], keys, values, seen, operands.sinks, scale, operands.value_scale)
    return y


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
    """Refuses by the mean number of queries: lengths are on the GPU and are not read. Any lengths are correct."""
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


@attention.implementation("triton:mixed", needs=triton_ready(), accepts=_refuse)
def triton_mixed(operands: AttentionOperands) -> Tensor:
    """Splits keys by the real lengths. A window needs no splits: its layers run as `triton:prefill` without any."""
    if operands.window is not None:
        return launch(cut_whole, operands)
    return attend_mixed(operands)


def _refuse_invariant(operands: AttentionOperands) -> str | None:
    return _refuse(operands) or refuse_splits(operands)


@attention.implementation(
    "triton:invariant", needs=triton_ready(), accepts=_refuse_invariant, is_row_invariant=True
)
def triton_invariant(operands: AttentionOperands) -> Tensor:
    """Adds keys in splits at fixed positions and these in ascending order, whatever the number of queries."""
    return run_splits(operands)


@attention.implementation("torch:invariant", needs=on_cpu, is_row_invariant=True)
def torch_invariant(operands: AttentionOperands) -> Tensor:
    return attend_fixed(operands)


def launch(cut: Callable[[Shapes], Tiles], operands: AttentionOperands) -> Tensor:
    """Launches one kernel, and a second to merge if the keys are split. The grids follow from shapes alone."""
    from firesteel.kernels.triton import attention as device

    q, k_pages, window = operands.q, operands.k_pages, operands.window
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0] == 0:
        return y
    shapes, tiles = find_tiles(cut, operands)
    parts, logs = y, None
    if tiles.splits > 1:
        parts = torch.empty(*q.shape[:2], tiles.splits, shapes.dim, dtype=torch.float32, device=q.device)
        logs = torch.empty(parts.shape[:3], dtype=torch.float32, device=q.device)
    launch_kernel(
        device.attend,
        (shapes.kv_heads, tiles.count(shapes), tiles.splits),
        parts,
        logs,
        *list_inputs(operands),
        *list_factors(operands),
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
    return list_constants(tiles, q, k_pages, window) | {"SPLITS": tiles.splits, "LEAST_KEYS": LEAST_KEYS}


for backend in ("fa3", "fa2"):
    attention.implementation(
        f"flashinfer:{backend}",
        needs=flashinfer_ready(backend),
        accepts=attention_library.refuse,
        can_capture=False,
        plan=functools.partial(attention_library.plan, backend),
    )(functools.partial(attention_library.run, backend))
attention.refused_names["trtllm"] = (
    "is a function of FlashInfer that is not an implementation: flashinfer:fa3 and flashinfer:fa2 are"
)
attention.prefer("triton:decode", "triton:prefill")
attention.samples(list_samples)
attention.workloads(list_workloads)


@attention.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    """Lists the kernels of gpt-oss with pages of 64: a prompt of 8192 tokens, and decoding after 8192 tokens.

    Decoding is of 32 requests with 1 or 4 queries each, and of a single request.
    """
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
    yield from list_code(real, fp8=capability >= (8, 9))
    yield from list_device_code(capability, real)


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
