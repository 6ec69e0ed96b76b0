"""Arguments and arithmetic of every op at the shapes of a model, for M tokens.

M is the number of tokens per step. Decode attention takes M as requests of one query each, prefill attention as the
length of one prompt. lm_head computes one row per request, so its M has the limit of decoding. Routing is random
and even. Ops that follow a norm get their input as the norm stores it, as in the network. Draws differ, so that a
rotation through several of them reads different memory each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from firesteel.kernels.noise import token_steps
from firesteel.kernels.op.op import Op
from firesteel.kernels.tiles.tile_pin import AUTO
from firesteel.measure.ops.decode_workloads import DECODE_MAKERS
from firesteel.measure.ops.shapes import PAGE_SIZE, ModelShapes, WorkloadPart

CONTEXTS = (2048, 8192)  # tokens that a decoding request holds
MOST_REQUESTS = 512  # decoded together
SHORTEST_PROMPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWorkload:
    op: Op[Any, Any]
    m: int
    activation: str  # empty if the op does not round activations
    part: WorkloadPart

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.part.label, f"M={self.m}", self.activation)))


def list_workloads(op: Op[Any, Any], m: int, activation: str, shapes: ModelShapes) -> Iterator[OpWorkload]:
    """Lists the workloads of one op at M tokens; an op that does not round activations has only the plain one."""
    if op.activation_at is None:
        if activation != "bf16":
            return
        activation = ""
    for part in MAKERS[op.name](shapes, m, activation):
        yield OpWorkload(op=op, m=m, activation=activation, part=part)


def _linear(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec
    for name, rows, columns in (
        ("qkv", spec.q_size + 2 * spec.kv_size, spec.hidden_size),
        ("o", spec.hidden_size, spec.q_size),
        ("lm_head", spec.vocab_size, spec.hidden_size),
    ):
        if name == "lm_head" and m > MOST_REQUESTS:
            continue
        for held in ("bf16", "mxfp4") if activation == "bf16" else ("mxfp4",):
            make, label = shapes.weight if held == "bf16" else shapes.mxfp4_weight, f"{name} {held}"

            def draw(
                rows: int = rows, columns: int = columns, name: str = name, make: Any = make, label: str = label
            ) -> tuple[Any, ...]:
                bias = None if name == "lm_head" else shapes.bias(rows)
                x, weight = shapes.normal(m, columns), make(rows, columns)
                fed = shapes.fed(x, activation) if label == "qkv mxfp4" else None
                return x, weight, bias, activation, AUTO, fed

            yield WorkloadPart(label, 2.0 * m * rows * columns, 2 * rows * columns, draw)


def _moe_matmul(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec

    def draw() -> tuple[Any, ...]:
        x, routing = shapes.normal(m, spec.hidden_size), shapes.routing(m)
        fed = shapes.fed(x, activation)
        return x, *routing, shapes.next_experts(), spec.swiglu_limit, activation, AUTO, fed

    flops = 6.0 * m * spec.num_active * spec.hidden_size * spec.intermediate_size
    yield WorkloadPart("", flops, shapes.expert_copies * shapes.experts_bytes, draw)


def _attention(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    window = next((window for window in shapes.spec.windows if window is not None), None)
    contexts = [context for context in CONTEXTS if context <= shapes.spec.max_context] or [shapes.spec.max_context]
    if m <= MOST_REQUESTS:
        for context in contexts:
            yield _attend(shapes, f"decode full {context}", m, 1, context, None)
        if window is not None:
            yield _attend(shapes, f"decode window {contexts[-1]}", m, 1, contexts[-1], window)
    if SHORTEST_PROMPT <= m <= shapes.spec.max_context:
        yield _attend(shapes, "prefill full", 1, m, m, None)
        if window is not None:
            yield _attend(shapes, "prefill window", 1, m, m, window)


def _attend(
    shapes: ModelShapes, label: str, requests: int, queries: int, held: int, window: int | None
) -> WorkloadPart:
    """Builds `requests` requests of `held` tokens, the last `queries` of which attend; unseen pages are omitted."""
    spec = shapes.spec
    first = max(0, held - queries + 1 - window) // PAGE_SIZE if window is not None else 0
    pages = -(-held // PAGE_SIZE)
    made = requests * (pages - first)

    def draw() -> tuple[Any, ...]:
        k_pages, v_pages = (shapes.normal(made, spec.num_kv_heads, PAGE_SIZE, spec.head_dim) for _ in range(2))
        table = torch.zeros(requests, pages, dtype=torch.int64, device=shapes.device)
        table[:, first:] = shapes.permutation(made).view(requests, -1)
        starts = torch.arange(0, requests * queries + 1, queries, device=shapes.device)
        held_each = torch.full((requests,), held, device=shapes.device)
        q = shapes.normal(requests * queries, spec.num_heads, spec.head_dim)
        sinks = shapes.bias(spec.num_heads)
        return q, k_pages, v_pages, table, starts, held_each, sinks, window, spec.head_dim**-0.5

    seen = sum(min(held - queries + 1 + number, window or held) for number in range(queries))
    flops = 4.0 * requests * seen * spec.q_size
    return WorkloadPart(label, flops, made * PAGE_SIZE * shapes.token_bytes(), draw)


def _rms_norm(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    hidden = shapes.spec.hidden_size

    def draw() -> tuple[Any, ...]:
        return shapes.normal(m, hidden), shapes.normal(m, hidden), shapes.bias(hidden), shapes.spec.rms_eps

    yield WorkloadPart("", 0.0, 8 * m * hidden, draw)


def _rms_norm_fed(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    (plain,) = _rms_norm(shapes, m, activation)
    yield plain._replace(draw=lambda: (*plain.draw(), activation))


def _quantize_mxfp8(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    hidden = shapes.spec.hidden_size
    yield WorkloadPart("", 0.0, 4 * m * hidden, lambda: (shapes.normal(m, hidden),))


def _rope_kv_write(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Builds M tokens of M requests, with random positions and slots."""
    spec = shapes.spec
    heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
    pages = -(-m // PAGE_SIZE) + 1

    def draw() -> tuple[Any, ...]:
        q, k, v = shapes.normal(m, sum(heads), spec.head_dim).split(heads, dim=1)
        k_pages, v_pages = (shapes.normal(pages, spec.num_kv_heads, PAGE_SIZE, spec.head_dim) for _ in range(2))
        positions, slots = shapes.integers(spec.max_context, m), shapes.permutation(pages * PAGE_SIZE)[:m]
        return q, k, v, positions, shapes.rope_table, k_pages, v_pages, slots

    yield WorkloadPart("", 0.0, 4 * pages * PAGE_SIZE * (spec.q_size + 2 * spec.kv_size), draw)


def _route(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Builds inputs whose logits are distinct integers, so that rounding cannot change the choice."""
    experts, hidden = shapes.spec.num_experts, shapes.spec.hidden_size

    def draw() -> tuple[Any, ...]:
        x = torch.zeros(m, hidden, dtype=shapes.dtype, device=shapes.device)
        order = torch.rand(m, experts, generator=shapes.generator, device=shapes.device).argsort(-1)
        x[:, :experts] = order - experts // 2
        weight = torch.eye(experts, hidden, device=shapes.device).to(shapes.dtype)
        return x, weight, torch.zeros(experts, dtype=shapes.dtype, device=shapes.device), shapes.spec.num_active

    yield WorkloadPart("", 2.0 * m * experts * hidden, 4 * m * hidden, draw)


def _draw(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Builds logits of M requests, up to the limit of decoding."""
    size, device = shapes.spec.vocab_size, shapes.device

    def draw() -> tuple[Any, ...]:
        logits = torch.randn(m, size, generator=shapes.generator, device=device)
        keys = torch.randint(2**62, (m,), generator=shapes.generator, device=device)
        return logits, logits.amax(-1), torch.ones(m, device=device), keys, token_steps(size, device)

    if m <= MOST_REQUESTS:
        yield WorkloadPart("", 0.0, 12 * m * size, draw)


MAKERS: dict[str, Callable[[ModelShapes, int, str], Iterator[WorkloadPart]]] = {
    "rms_norm": _rms_norm,
    "rms_norm_fed": _rms_norm_fed,
    "quantize_mxfp8": _quantize_mxfp8,
    "linear": _linear,
    "rope_kv_write": _rope_kv_write,
    "attention": _attention,
    "route": _route,
    "moe_matmul": _moe_matmul,
    "draw": _draw,
    **DECODE_MAKERS,
}
