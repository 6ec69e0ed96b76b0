"""The operands of attention, and random ones for tests and benchmarks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.shapes import MOST_DECODED, PAGE_SIZE, ModelShapes, WorkloadPart

CONTEXTS = (2048, 8192)  # tokens that a decoded request of a workload holds
SHORTEST_PROMPT = 64  # tokens
MIXED_TOKENS = (512, 1024, 2048)  # of a step with a prompt beside decoding requests
MIXED_CONTEXT = 16384  # tokens that a row of its page table has room for
MIXED_ROOM = 255  # requests that such a step in a graph has room for


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOperands(Operands):
    q: Tensor  # [T, Q, D]; rows of request r: query_starts[r] to query_starts[r+1]
    k_pages: Tensor  # [P, K, S, D]; Q/K query heads share a kv head
    v_pages: Tensor  # [P, K, S, D]
    page_table: Tensor  # [R, N] int64; entries wholly before the window are never read
    query_starts: Tensor  # [R+1] int64; rows from the last one on belong to no request
    kv_lens: Tensor  # [R] int64; the queries are the last tokens of each request
    sinks: Tensor | None  # [Q], a logit per query head that joins the denominator only
    window: int | None  # the number of tokens seen, the token itself included; None: all
    scale: float  # of the products, not of the sinks
    key_scale: float = 1.0  # what keys were divided by when they were stored; it does not apply to the sinks
    value_scale: float = 1.0  # the same for values


def count_rows(operands: AttentionOperands) -> int:
    """Returns the number of queries that belong to a request."""
    return int(operands.query_starts[-1])


def keep_rows(operands: AttentionOperands, rows: Sequence[int]) -> AttentionOperands:
    """Returns a call with these queries only; those that follow each other stay queries of one request."""
    starts, lens = operands.query_starts.tolist(), operands.kv_lens.tolist()
    requests: list[int] = []
    counts: list[int] = []
    held: list[int] = []
    for place, row in enumerate(rows):
        request = bisect_right(starts, row) - 1
        if place and rows[place - 1] == row - 1 and requests[-1] == request:
            counts[-1] += 1
        else:
            requests.append(request)
            counts.append(1)
            held.append(0)
        held[-1] = lens[request] - (starts[request + 1] - 1 - row)
    device = operands.q.device
    return replace(
        operands,
        q=operands.q[torch.tensor(rows, device=device)],
        page_table=operands.page_table[torch.tensor(requests, device=device)],
        query_starts=torch.tensor([0, *counts], device=device).cumsum(0),
        kv_lens=torch.tensor(held, device=device),
    )


def list_samples(device: torch.device) -> Iterator[Sample]:
    """Yields decoding, prompts and both, with and without a window, sinks and scales."""
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
    """Assigns pages at random; slots that no request owns hold NaN, which must not reach the result."""
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


def list_workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Yields decoding of M requests with one query each, prefill of a prompt of M tokens, and both in one step."""
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
    if m in MIXED_TOKENS and spec.max_context >= MIXED_CONTEXT:
        yield _mixed_part(shapes, "prompt beside 31 x 1500", m, 31, 1500, None)
        yield _mixed_part(shapes, "prompt beside 7 x 8000", m, 7, 8000, None)
        if window is not None:
            yield _mixed_part(shapes, "window prompt beside 31 x 1500", m, 31, 1500, window)


def _mixed_part(
    shapes: ModelShapes, label: str, tokens: int, requests: int, held: int, window: int | None
) -> WorkloadPart:
    """Returns a step of `tokens` tokens in a graph: `requests` that decode after `held` tokens, then a prompt.

    As in a graph, there is room for more requests and page tables are wider than anybody needs.
    """
    spec = shapes.spec
    prompt = tokens - requests
    lens = [held] * requests + [prompt]
    pages = [-(-count // PAGE_SIZE) for count in lens]
    made = sum(pages)

    def draw() -> tuple[AttentionOperands]:
        table = torch.zeros(MIXED_ROOM, MIXED_CONTEXT // PAGE_SIZE, dtype=torch.int64, device=shapes.device)
        for request, own in enumerate(shapes.permutation(made).split(pages)):
            table[request, : len(own)] = own
        idle = MIXED_ROOM - len(lens)
        starts = [*range(requests + 1), *[tokens] * (idle + 1)]
        operands = AttentionOperands(
            q=shapes.normal(tokens, spec.num_heads, spec.head_dim),
            k_pages=shapes.normal(made, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            v_pages=shapes.normal(made, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            page_table=table,
            query_starts=torch.tensor(starts, device=shapes.device),
            kv_lens=torch.tensor(lens + [0] * idle, device=shapes.device),
            sinks=shapes.bias(spec.num_heads),
            window=window,
            scale=spec.head_dim**-0.5,
        )
        return (operands,)

    seen = requests * min(held, window or held) + sum(min(number + 1, window or prompt) for number in range(prompt))
    return WorkloadPart(label, 4.0 * seen * spec.q_size, made * PAGE_SIZE * shapes.token_bytes(), draw)


def _attend_part(
    shapes: ModelShapes, label: str, requests: int, queries: int, held: int, window: int | None
) -> WorkloadPart:
    """Returns equal requests of `held` tokens, the last `queries` of them new; pages never read are not made."""
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
