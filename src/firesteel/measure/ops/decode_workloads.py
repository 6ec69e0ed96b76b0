"""Arguments and arithmetic of the decode ops at the shapes of a model, for M requests of one token.

M is limited to the tokens that the kernels take. Dense weights come in bf16 and in MXFP4.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.decode.lm_head import find_best
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.stream.launch import ROUNDED
from firesteel.kernels.stream.ring import MOST_TOKENS
from firesteel.measure.ops.shapes import PAGE_SIZE, ModelShapes, WorkloadPart

CONTEXT = 2048  # tokens that a request holds
BEST_PARTS = 132  # CTAs of lm_head, each with its most likely token

Weight = Tensor | Mxfp4Weight
Maker = Callable[[ModelShapes, int, str], Iterator[WorkloadPart]]


def _dense(
    shapes: ModelShapes, m: int, activation: str, rows: int, columns: int, draw: Callable[[Weight], tuple[Any, ...]]
) -> Iterator[WorkloadPart]:
    """Yields a part per weight format; activations are rounded only for MXFP4 weights."""
    held: dict[str, Callable[[int, int], Weight]] = {"bf16": shapes.weight, "mxfp4": shapes.mxfp4_weight}
    for label in held if activation == "bf16" else ("mxfp4",):

        def draw_all(make: Callable[[int, int], Weight] = held[label]) -> tuple[Any, ...]:
            return *draw(make(rows, columns)), activation

        yield WorkloadPart(label, 2.0 * m * rows * columns, 2 * rows * columns, draw_all)


def _qkv(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec, pages = shapes.spec, 2
    rows = spec.q_size + 2 * spec.kv_size

    def draw(weight: Weight) -> tuple[Any, ...]:
        held = [shapes.normal(pages, spec.num_kv_heads, PAGE_SIZE, spec.head_dim) for _ in range(2)]
        positions, slots = shapes.integers(spec.max_context, m), shapes.permutation(pages * PAGE_SIZE)[:m].clone()
        return *_normed(shapes, m), weight, shapes.bias(rows), shapes.rope_table, positions, slots, *held

    yield from _dense(shapes, m, activation, rows, spec.hidden_size, draw)


def _normed(shapes: ModelShapes, m: int) -> tuple[Any, ...]:
    hidden = shapes.spec.hidden_size
    return shapes.normal(m, hidden), shapes.bias(hidden), shapes.spec.rms_eps


def _attention(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec
    held = min(CONTEXT, spec.max_context)
    width = -(-held // PAGE_SIZE)

    def draw(window: int | None) -> tuple[Any, ...]:
        pages = [shapes.normal(m * width, spec.num_kv_heads, PAGE_SIZE, spec.head_dim) for _ in range(2)]
        table = shapes.permutation(m * width).view(m, width)
        lens = torch.full((m,), held, device=shapes.device)
        q, sinks = shapes.normal(m, spec.num_heads, spec.head_dim), shapes.bias(spec.num_heads)
        return q, *pages, table, lens, sinks, window, spec.head_dim**-0.5

    for window in dict.fromkeys(spec.windows):
        label = "full" if window is None else "window"
        flops = 4.0 * m * min(held, window or held) * spec.q_size
        held_bytes = m * width * PAGE_SIZE * shapes.token_bytes()
        yield WorkloadPart(f"{label} {held}", flops, held_bytes, functools.partial(draw, window))


def _o(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec

    def draw(weight: Weight) -> tuple[Any, ...]:
        bias, r = shapes.bias(spec.hidden_size), shapes.normal(m, spec.hidden_size)
        return shapes.normal(m, spec.q_size), weight, bias, r

    yield from _dense(shapes, m, activation, spec.hidden_size, spec.q_size, draw)


def _router(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    experts, hidden = shapes.spec.num_experts, shapes.spec.hidden_size

    def draw() -> tuple[Any, ...]:
        weight = shapes.weight(experts, hidden).to(shapes.dtype)
        return *_normed(shapes, m), weight, shapes.bias(experts)

    yield WorkloadPart("", 2.0 * m * experts * hidden, 2 * experts * hidden, draw)


def _logits(shapes: ModelShapes, m: int) -> Tensor:
    """Draws router logits that are 0.25 apart within a token, so that rounding cannot change a choice."""
    order = torch.rand(m, shapes.spec.num_experts, generator=shapes.generator, device=shapes.device).argsort(-1)
    return order.float().mul_(0.25)


def _fc1(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec

    def draw() -> tuple[Any, ...]:
        routed = (_logits(shapes, m), shapes.next_experts(), spec.swiglu_limit, spec.num_active)
        return *_normed(shapes, m), *routed, activation

    flops = 4.0 * m * spec.num_active * spec.hidden_size * spec.intermediate_size
    yield WorkloadPart("", flops, shapes.expert_copies * shapes.experts_bytes, draw)


def _fc2(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec

    def draw() -> tuple[Any, ...]:
        inner = shapes.normal(m, spec.num_active, spec.intermediate_size)
        return inner, _logits(shapes, m), shapes.next_experts(), shapes.normal(m, spec.hidden_size), activation

    flops = 2.0 * m * spec.num_active * spec.hidden_size * spec.intermediate_size
    yield WorkloadPart("", flops, shapes.expert_copies * shapes.experts_bytes, draw)


def _experts(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    (first,), (second,) = _fc1(shapes, m, activation), _fc2(shapes, m, activation)
    yield WorkloadPart("", first.flops + second.flops, first.held_bytes, first.draw)


def _lm_head(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec
    yield from _dense(
        shapes, m, activation, spec.vocab_size, spec.hidden_size, lambda weight: (*_normed(shapes, m), weight)
    )


def _sample(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec
    width = -(-min(CONTEXT, spec.max_context) // PAGE_SIZE)

    def draw() -> tuple[Any, ...]:
        best = find_best(shapes.normal(m, spec.vocab_size).float(), BEST_PARTS)
        embedding = shapes.normal(spec.vocab_size, spec.hidden_size)
        positions = shapes.integers(width * PAGE_SIZE, m)
        token_ids, kv_lens, *slots = torch.zeros(4, m, dtype=torch.int64, device=shapes.device)
        tables = [shapes.permutation(m * width).view(m, width) for _ in range(2)]
        r = shapes.normal(m, spec.hidden_size)
        return (
            best,
            embedding,
            token_ids,
            positions,
            kv_lens,
            *slots,
            *tables,
            PAGE_SIZE,
            r,
            torch.zeros(m, device=shapes.device),
        )

    yield WorkloadPart("", 0.0, 2 * spec.vocab_size * spec.hidden_size, draw)


def _few(make: Maker) -> Maker:
    """Limits a maker to the tokens and activations that decode ops take."""

    def make_few(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
        if m <= MOST_TOKENS and activation in ("", "bf16", ROUNDED):
            yield from make(shapes, m, activation)

    return make_few


DECODE_MAKERS: dict[str, Maker] = {
    "decode_qkv": _few(_qkv),
    "decode_attention": _few(_attention),
    "decode_o": _few(_o),
    "decode_router": _few(_router),
    "decode_experts": _few(_experts),
    "decode_fc1": _few(_fc1),
    "decode_fc2": _few(_fc2),
    "decode_lm_head": _few(_lm_head),
    "decode_sample": _few(_sample),
}
