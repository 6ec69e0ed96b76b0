"""How a step's cost grows with the requests decoded together and with drafted tokens; runs nothing.

Experts decide both: tokens that meet the same ones read them once. `overlap` says how often they do: 0 is routing
without any relation between tokens, 1 is all tokens meeting the same experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from firesteel.measure.roofline.roofline import (
    RooflineError,
    Speculation,
    StepShape,
    expected_experts,
    speculate,
    step_cost,
)
from firesteel.model.spec import ModelSpec

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    requests: int
    distinct_experts: float  # in each layer
    bytes_a_token: float
    flops_a_byte: float
    ceiling_tok_s: float  # all requests together
    request_tok_s: float  # one of them

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPoint:
    drafted: int
    distinct_experts: float  # that the verifying step meets in each layer
    cost: float  # of verifying and drafting, in plain steps
    break_even_acceptance: float | None  # None where even perfect drafts lose
    break_even_length: float  # tokens a step
    length: float | None = None  # at the acceptance asked about
    speedup: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def shared_experts(spec: ModelSpec, tokens: int, overlap: float = 0.0) -> float:
    """Distinct experts of so many tokens in a layer."""
    if not 0 <= overlap <= 1:
        raise RooflineError(f"overlap = {overlap}: must lie between 0 and 1")
    apart = max(expected_experts(spec, tokens), spec.num_active)  # of one token, rounding may fall below
    return spec.num_active + (1 - overlap) * (apart - spec.num_active)


def batch_curve(
    spec: ModelSpec, step: StepShape, gb_s: float, *, overlap: float = 0.0, batches: Sequence[int] = BATCHES
) -> list[BatchPoint]:
    return [_batch_point(spec, step, gb_s, overlap, requests) for requests in batches]


def _batch_point(spec: ModelSpec, step: StepShape, gb_s: float, overlap: float, requests: int) -> BatchPoint:
    experts = shared_experts(spec, requests * step.tokens, overlap)
    cost = step_cost(spec, replace(step, requests=requests, distinct_experts=experts))
    return BatchPoint(
        requests=requests, distinct_experts=experts, bytes_a_token=cost.bytes / requests,
        flops_a_byte=cost.flops / cost.bytes, ceiling_tok_s=cost.tok_s(gb_s),
        request_tok_s=cost.tok_s(gb_s) / requests,
    )  # fmt: skip


def draft_curve(
    spec: ModelSpec,
    step: StepShape,
    most: int,
    *,
    acceptance: float | None = None,
    overlap: float = 0.0,
    draft_bytes: float = 0.0,
) -> list[DraftPoint]:
    """From one drafted token to `most`; `draft_bytes` are read for each of them."""
    if most < 1:
        raise RooflineError(f"speculate = {most}: must be at least 1")
    return [_draft_point(spec, step, drafted, acceptance, overlap, draft_bytes) for drafted in range(1, most + 1)]


def _draft_point(
    spec: ModelSpec, step: StepShape, drafted: int, acceptance: float | None, overlap: float, draft_bytes: float
) -> DraftPoint:
    experts = shared_experts(spec, step.requests * (drafted + 1), overlap)
    plain = replace(step, distinct_experts=shared_experts(spec, step.requests, overlap))
    found: Speculation = speculate(spec, plain, drafted, draft_bytes=drafted * draft_bytes, verify_experts=experts)
    return DraftPoint(
        drafted=drafted, distinct_experts=experts, cost=found.cost, break_even_acceptance=found.break_even(),
        break_even_length=found.cost, length=None if acceptance is None else found.length(acceptance),
        speedup=None if acceptance is None else found.speedup(acceptance),
    )  # fmt: skip


def best_draft(points: Sequence[DraftPoint]) -> DraftPoint | None:
    """The one that gains most; None where none gains."""
    gaining = [point for point in points if point.speedup is not None and point.speedup > 1]
    return max(gaining, key=lambda point: point.speedup or 0.0, default=None)
