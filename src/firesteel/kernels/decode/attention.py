"""Attention of one to eight queries over paged keys and values.

in   DecodeAttentionOperands
out  mixed  [T, Q D] bf16
Each row has one query and a page table. Rows may belong to one request: their tables are equal, and each sees the
tokens of those before it, which the same step writes.
Scores and sums are fp32; `cuda` rounds probabilities to bf16 before they meet the values. The CTAs of a long page
table count themselves in memory: no two calls may be in flight on different streams of a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import astuple

import torch
from torch import Tensor

from firesteel.kernels.decode.attention_operands import DecodeAttentionOperands, list_samples, list_workloads
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
from firesteel.kernels.op.profile import ATTENTION, OpProfile
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.attention_operands import AttentionOperands
from firesteel.kernels.ops.rope_kv_write import FP8, refuse_scales
from firesteel.kernels.stream.build import launch
from firesteel.kernels.stream.plan import FIRST, find_machine, machine_of
from firesteel.kernels.stream.refuse import refuse_layout, refuse_pages, refuse_strides, refuse_tokens, refuse_types
from firesteel.kernels.stream.ring import MOST_TOKENS
from firesteel.kernels.stream.shapes import GPT_OSS


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
    # By now the step has written all tokens: `num_stored` says what may be read earlier, and changes no value.
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
    page_table, kv_lens, num_stored = operands.page_table, operands.kv_lens, operands.num_stored
    (heads, dim), kv_heads = q.shape[1:], k_pages.shape[1]
    if dim != HEAD_DIM or heads % kv_heads or heads > MOST_HEADS * kv_heads:
        return f"takes up to {MOST_HEADS} heads of {HEAD_DIM} a kv head, not {heads} of {dim} for {kv_heads}"
    if k_pages.shape[2] % TILE:
        return f"reads pages of a multiple of {TILE} tokens, not {k_pages.shape[2]}"
    if q.shape[0] != len(kv_lens):
        return f"takes one query a length, not {q.shape[0]} of {len(kv_lens)}"
    if len(num_stored) != len(kv_lens):
        return f"takes as many numbers of stored tokens as lengths, not {len(num_stored)} of {len(kv_lens)}"
    return (
        refuse_tokens(q)
        or refuse_types(q, sinks)
        or refuse_pages(k_pages, v_pages)
        or refuse_scales(k_pages, operands.key_scale, operands.value_scale)
        or refuse_types(page_table, kv_lens, num_stored, wanted=torch.int64)
        or refuse_layout(q, k_pages, v_pages)
        or refuse_strides(page_table, kv_lens, num_stored, sinks)
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
        operands.num_stored,
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


decode_attention.samples(list_samples)
decode_attention.workloads(list_workloads)
