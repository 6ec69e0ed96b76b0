"""Attention of one query per request over paged keys and values, for one to eight requests.

in   DecodeAttentionOperands
out  mixed  [T, Q D] bf16
Scores and sums are fp32; `cuda` rounds probabilities to bf16 before they meet the values. The CTAs of a long page
table count themselves in memory: no two calls may be in flight on different streams of a GPU.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor

from firesteel.kernels.decode.attention_plan import (
    HEAD_DIM,
    MOST_HEADS,
    PART_FLOATS,
    SHORT,
    TILE,
    Sharing,
    kernel,
    share_tokens,
)
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.profile import ATTENTION, OpProfile
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.shapes import PAGE_SIZE, ModelShapes, WorkloadPart
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.rope_kv_write import FP8, refuse_scales
from firesteel.kernels.stream.build import launch
from firesteel.kernels.stream.plan import FIRST, find_machine, machine_of
from firesteel.kernels.stream.refuse import refuse_layout, refuse_pages, refuse_strides, refuse_tokens, refuse_types
from firesteel.kernels.stream.ring import MOST_TOKENS
from firesteel.kernels.stream.shapes import GPT_OSS, Draw, list_cases
from firesteel.kernels.stream.workload import CONTEXT, few_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeAttentionOperands(Operands):
    q: Tensor  # [T, Q, D] bf16, of decode_qkv
    k_pages: Tensor  # [P, K, S, D] bf16 or fp8 E4M3; Q/K query heads share a kv head
    v_pages: Tensor  # [P, K, S, D] of the same type
    page_table: Tensor  # [T, N] int64; entries wholly before the window are never read
    kv_lens: Tensor  # [T] int64; the query is the last token of each
    sinks: Tensor | None  # [Q] bf16, a logit per query head that joins the denominator only
    window: int | None  # the number of tokens seen, the token itself included; None: all
    scale: float  # of the products, not of the sinks
    key_scale: float = 1.0  # what keys in fp8 pages were divided by when they were stored; 1.0 in wider pages
    value_scale: float = 1.0  # the same for values
    # May begin before the decode_qkv ahead of it ends, and after no other kernel: lengths, page table and all
    # tokens but the newest are read before its wait.
    dependent: bool = False


def _bytes(operands: DecodeAttentionOperands) -> int:
    kv_lens, k_pages, window = operands.kv_lens, operands.k_pages, operands.window
    seen = kv_lens if window is None else kv_lens.clamp(max=window)
    token_bytes = k_pages.shape[1] * k_pages.shape[3] * k_pages.element_size()
    return 2 * operands.q.nbytes + 2 * int(seen.sum()) * token_bytes


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=2, why="probabilities may be rounded to bf16 before the product"),
    keeps_choice=True,
    profile=OpProfile(ATTENTION, reads="attention"),
    replaces=(attention,),
)
def decode_attention(operands: DecodeAttentionOperands) -> Tensor:
    whole = AttentionOperands(
        q=operands.q,
        k_pages=operands.k_pages,
        v_pages=operands.v_pages,
        page_table=operands.page_table,
        query_starts=torch.arange(len(operands.kv_lens) + 1, device=operands.q.device),
        kv_lens=operands.kv_lens,
        sinks=operands.sinks,
        window=operands.window,
        scale=operands.scale,
        key_scale=operands.key_scale,
        value_scale=operands.value_scale,
    )
    return attention.reference(whole).flatten(1)


def _accepts(operands: DecodeAttentionOperands) -> str | None:
    q, k_pages, v_pages, sinks = operands.q, operands.k_pages, operands.v_pages, operands.sinks
    page_table, kv_lens = operands.page_table, operands.kv_lens
    (heads, dim), kv_heads = q.shape[1:], k_pages.shape[1]
    if dim != HEAD_DIM or heads % kv_heads or heads > MOST_HEADS * kv_heads:
        return f"takes up to {MOST_HEADS} heads of {HEAD_DIM} a kv head, not {heads} of {dim} for {kv_heads}"
    if k_pages.shape[2] % TILE:
        return f"reads pages of a multiple of {TILE} tokens, not {k_pages.shape[2]}"
    if q.shape[0] != len(kv_lens):
        return f"takes one query a request, not {q.shape[0]} of {len(kv_lens)}"
    return (
        refuse_tokens(q)
        or refuse_types(q, sinks)
        or refuse_pages(k_pages, v_pages)
        or refuse_scales(k_pages, operands.key_scale, operands.value_scale)
        or refuse_types(page_table, kv_lens, wanted=torch.int64)
        or refuse_layout(q, k_pages, v_pages)
        or refuse_strides(page_table, kv_lens, sinks)
    )


@decode_attention.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_attention(operands: DecodeAttentionOperands) -> Tensor:
    q, k_pages, page_table, window = operands.q, operands.k_pages, operands.page_table, operands.window
    tokens, heads = q.shape[:2]
    kv_heads, page_size = k_pages.shape[1:3]
    mixed = torch.empty(tokens, heads * HEAD_DIM, dtype=q.dtype, device=q.device)
    machine = find_machine(q.device)
    sharing = share_tokens(machine, tokens * kv_heads, page_table.shape[1] * page_size, window)
    floats = tokens * kv_heads * sharing.programs * PART_FLOATS if sharing.in_memory else 0
    parts = torch.empty(floats, dtype=torch.float32, device=q.device)
    is_fp8 = k_pages.dtype == FP8
    args = (
        q,
        k_pages,
        operands.v_pages,
        operands.sinks,
        page_table,
        operands.kv_lens,
        mixed,
        parts,
        operands.scale * operands.key_scale,
        page_size,
        page_table.shape[1],
        window or 0,
        *((operands.value_scale,) if is_fp8 else ()),
    )
    attend = kernel(machine, heads, kv_heads, sharing, is_fp8)
    grid = (sharing.programs, kv_heads, tokens)
    cluster = () if sharing.in_memory else (sharing.programs,)
    launch(attend, grid, args, operands.dependent, cluster=cluster, tile=sharing)
    return mixed


decode_attention.prefer("cuda")


@decode_attention.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    """Lists one kernel per sharing: layers with a window have one CTA, others what requests and tables lead to."""
    if capability < FIRST:
        return
    machine, heads = machine_of(capability), GPT_OSS.kv_heads
    tables = itertools.product(range(1, MOST_TOKENS + 1), (SHORT, 2 * SHORT))
    ways = {share_tokens(machine, heads * tokens, held, None) for tokens, held in tables}
    for sharing in sorted({Sharing(), *ways}, key=astuple):
        yield CudaCode(variant=f"cuda {sharing}", kernel=kernel(machine, GPT_OSS.heads, heads, sharing))
        fp8 = kernel(machine, GPT_OSS.heads, heads, sharing, has_fp8_pages=True)
        yield CudaCode(variant=f"cuda fp8-pages {sharing}", kernel=fp8)


@decode_attention.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """Yields lengths around the window's, a page's and a round of the CTAs; slots no request owns hold NaN."""
    lens = (1300, 1, 129, 2, 64, 1025, 17, 300)
    ways = (
        ("full", None, True, 0),
        ("window", 128, True, 0),
        ("no sinks", None, False, 0),
        ("long table", None, True, SHORT + 1),
    )
    for label, tokens, sizes, draw in list_cases(device):
        for seen, window, has_sinks, room in ways:
            page_size = 16 if window is None else 64
            pages = _sample_pages(lens[:tokens], page_size, window, sizes.kv_heads, draw, room)
            k_pages, v_pages, page_table, kv_lens = pages
            q, sinks = draw.normal(tokens, sizes.heads, HEAD_DIM), draw.normal(sizes.heads, scale=3)
            operands = DecodeAttentionOperands(
                q=q,
                k_pages=k_pages,
                v_pages=v_pages,
                page_table=page_table,
                kv_lens=kv_lens,
                sinks=sinks if has_sinks else None,
                window=window,
                scale=0.125,
            )
            yield Sample(f"{label} {seen}", (operands,))
            if has_sinks:  # scales that must not apply to the sinks, which are as large as the scores
                stored = replace(
                    operands,
                    k_pages=k_pages.float().mul(16).to(FP8),
                    v_pages=v_pages.float().mul(16).to(FP8),
                    key_scale=0.0625,
                    value_scale=3.0,
                )
                yield Sample(f"{label} {seen}, fp8 pages with scales", (stored,))


def _sample_pages(
    lens: tuple[int, ...], page_size: int, window: int | None, kv_heads: int, draw: Draw, room: int = 0
) -> tuple[Tensor, ...]:
    """Returns keys, values, page table and lengths; the table has room for at least `room` tokens.

    Pages before the window belong to nobody: the table points far outside.
    """
    counts = [-(-held // page_size) for held in lens]
    order = draw.permutation(sum(counts) + 3)
    width = max(*counts, -(-room // page_size))
    table = torch.zeros(len(lens), width, dtype=torch.int64, device=draw.device)
    k_pages, v_pages = torch.full((2, len(order), kv_heads, page_size, HEAD_DIM), float("nan"), device=draw.device)
    taken = 0
    for request, (count, held) in enumerate(zip(counts, lens, strict=True)):
        mine = order[taken : taken + count]
        taken += count
        first = 0 if window is None else max(0, held - window) // page_size
        table[request, :first], table[request, first:count] = 1 << 40, mine[first:]
        for pages in (k_pages, v_pages):
            fresh = draw.normal(kv_heads, count * page_size, HEAD_DIM).float()
            fresh[:, held:] = float("nan")
            pages[mine] = fresh.unflatten(1, (count, page_size)).transpose(0, 1)
    return k_pages.bfloat16(), v_pages.bfloat16(), table, torch.tensor(lens, device=draw.device)


@decode_attention.workloads
@few_tokens
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec
    held = min(CONTEXT, spec.max_context)
    width = -(-held // PAGE_SIZE)

    def draw(window: int | None) -> tuple[DecodeAttentionOperands]:
        operands = DecodeAttentionOperands(
            q=shapes.normal(m, spec.num_heads, spec.head_dim),
            k_pages=shapes.normal(m * width, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            v_pages=shapes.normal(m * width, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            page_table=shapes.permutation(m * width).view(m, width),
            kv_lens=torch.full((m,), held, device=shapes.device),
            sinks=shapes.bias(spec.num_heads),
            window=window,
            scale=spec.head_dim**-0.5,
        )
        return (operands,)

    for window in dict.fromkeys(spec.windows):
        label = "full" if window is None else "window"
        flops = 4.0 * m * min(held, window or held) * spec.q_size
        held_bytes = m * width * PAGE_SIZE * shapes.token_bytes()
        yield WorkloadPart(f"{label} {held}", flops, held_bytes, functools.partial(draw, window))
