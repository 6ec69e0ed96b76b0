"""The operands of decode_attention, and random ones for tests and benchmarks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from firesteel.kernels.decode.attention_plan import HEAD_DIM, SHORT
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.shapes import PAGE_SIZE, ModelShapes, WorkloadPart
from firesteel.kernels.ops.rope_kv_write import FP8
from firesteel.kernels.stream.shapes import Draw, list_cases
from firesteel.kernels.stream.workload import CONTEXT, few_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeAttentionOperands(Operands):
    q: Tensor  # [T, Q, D] bf16, of decode_qkv
    k_pages: Tensor  # [P, K, S, D] bf16 or fp8 E4M3; Q/K query heads share a kv head
    v_pages: Tensor  # [P, K, S, D] of the same type
    page_table: Tensor  # [T, N] int64; entries wholly before the window are never read
    kv_lens: Tensor  # [T] int64; the query is the last token of each
    # [T] int64, less than kv_lens: tokens that were in the pages before this step, whose decode_qkv writes the
    # others: the query's own, and those of earlier rows of the same request.
    num_stored: Tensor
    sinks: Tensor | None  # [Q] bf16, a logit per query head that joins the denominator only
    window: int | None  # the number of tokens seen, the token itself included; None: all
    scale: float  # of the products, not of the sinks
    key_scale: float = 1.0  # what keys in fp8 pages were divided by when they were stored; 1.0 in wider pages
    value_scale: float = 1.0  # the same for values
    # May begin before the decode_qkv ahead of it ends, and after no other kernel: lengths, page table and stored
    # tokens are read before its wait.
    dependent: bool = False


class Held(NamedTuple):
    """What a request holds after a step, and how many of the last tokens the step computes, a row each."""

    tokens: int
    rows: int = 1


SINGLE = tuple(Held(tokens) for tokens in (1300, 1, 129, 2, 64, 1025, 17, 300))
SEVERAL = {  # by T; rows begin a page, or are all that the request has
    2: (Held(1025, 2),),
    3: (Held(18, 3),),
    5: (Held(65, 3), Held(2, 2)),
    8: (Held(1027, 4), Held(129), Held(18, 3)),
}


def list_samples(device: torch.device) -> Iterator[Sample]:
    """Yields lengths around the window's, a page's and a round of the CTAs; slots no request owns hold NaN."""
    ways = (
        ("full", None, True, 0),
        ("window", 128, True, 0),
        ("no sinks", None, False, 0),
        ("long table", None, True, SHORT + 1),
    )
    for label, tokens, sizes, draw in list_cases(device):
        for seen, window, has_sinks, room in ways:
            groups = {"": SINGLE[:tokens]}
            if tokens in SEVERAL and has_sinks:
                groups[" of several rows a request"] = SEVERAL[tokens]
            for several, requests in groups.items():
                page_size = 16 if window is None else 64
                sinks = draw.normal(sizes.heads, scale=3)
                operands = DecodeAttentionOperands(
                    q=draw.normal(tokens, sizes.heads, HEAD_DIM),
                    **draw_pages(requests, page_size, window, sizes.kv_heads, draw, room),
                    sinks=sinks if has_sinks else None,
                    window=window,
                    scale=0.125,
                )
                yield Sample(f"{label} {seen}{several}", (operands,))
                if has_sinks:  # scales that must not apply to the sinks, which are as large as the scores
                    stored = replace(
                        operands,
                        k_pages=operands.k_pages.float().mul(16).to(FP8),
                        v_pages=operands.v_pages.float().mul(16).to(FP8),
                        key_scale=0.0625,
                        value_scale=3.0,
                    )
                    yield Sample(f"{label} {seen}{several}, fp8 pages with scales", (stored,))


def draw_pages(
    requests: tuple[Held, ...], page_size: int, window: int | None, kv_heads: int, draw: Draw, room: int = 0
) -> dict[str, Any]:
    """Returns pages, page table, lengths and stored tokens; the table has room for at least `room` tokens.

    Pages before the window belong to nobody: the table points far outside.
    """
    counts = [-(-request.tokens // page_size) for request in requests]
    order = draw.permutation(sum(counts) + 3)
    width = max(*counts, -(-room // page_size))
    table = torch.zeros(len(requests), width, dtype=torch.int64, device=draw.device)
    k_pages, v_pages = torch.full((2, len(order), kv_heads, page_size, HEAD_DIM), float("nan"), device=draw.device)
    taken = 0
    for number, (count, (held, rows)) in enumerate(zip(counts, requests, strict=True)):
        mine = order[taken : taken + count]
        taken += count
        first = 0 if window is None else max(0, held - rows + 1 - window) // page_size
        table[number, :first], table[number, first:count] = 1 << 40, mine[first:]
        for pages in (k_pages, v_pages):
            fresh = draw.normal(kv_heads, count * page_size, HEAD_DIM).float()
            fresh[:, held:] = float("nan")
            pages[mine] = fresh.unflatten(1, (count, page_size)).transpose(0, 1)
    owners = [number for number, request in enumerate(requests) for _ in range(request.rows)]
    kv_lens = [held - rows + 1 + row for held, rows in requests for row in range(rows)]
    stored = [held - rows for held, rows in requests for _ in range(rows)]
    return {
        "k_pages": k_pages.bfloat16(),
        "v_pages": v_pages.bfloat16(),
        "page_table": table[owners],
        "kv_lens": torch.tensor(kv_lens, device=draw.device),
        "num_stored": torch.tensor(stored, device=draw.device),
    }


@few_tokens
def list_workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
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
            num_stored=torch.full((m,), held - 1, device=shapes.device),
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
