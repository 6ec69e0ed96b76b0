"""Growth of the cost of a step with the number of requests and of drafted tokens.

Experts determine both: tokens that choose the same experts read them once. `overlap` is 0 if tokens choose
independently and 1 if all tokens choose the same experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from firesteel.measure.roofline.roofline import (
    RooflineError,
    StepShape,
    expected_experts,
    step_cost,
)
from firesteel.model.spec import ModelSpec

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    requests: int
    distinct_experts: float  # per layer
    bytes_a_token: float
    flops_a_byte: float
    ceiling_tok_s: float  # all requests together
    request_tok_s: float  # one of them

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPoint:
    drafted: int
    distinct_experts: float  # per layer in the verifying step
    cost: float  # of verifying and drafting, in plain steps
    break_even_acceptance: float | None  # None if even perfect drafts lose
    break_even_length: float  # tokens per step
    length: float | None = None  # at the given acceptance
    speedup: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Cost and gain of verifying `drafted` tokens and the bonus token in one step instead of decoding them."""

    drafted: int
    cost: float  # of verifying and drafting, in plain steps

    def length(self, acceptance: float) -> float:
        """Returns tokens per step if each drafted token is accepted with this probability after the one before."""
        if not 0 <= acceptance <= 1:
            raise RooflineError(f"acceptance = {acceptance}: must lie between 0 and 1")
        return sum(acceptance**position for position in range(self.drafted + 1))

    def speedup(self, acceptance: float) -> float:
        return self.length(acceptance) / self.cost

    def break_even(self) -> float | None:
        """Returns the acceptance above which speculation gains; None if even perfect drafts lose."""
        if self.length(1.0) < self.cost:
            return None
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.length(middle) < self.cost else (low, middle)
        return high


def speculate(
    spec: ModelSpec,
    step: StepShape,
    drafted: int,
    *,
    draft_bytes: float = 0.0,
    verify_experts: float | None = None,
) -> Speculation:
    """Compares the verifying step with a plain one.

    `draft_bytes` are read to draft for one request; `verify_experts` are measured distinct experts, as in `step`.
    """
    if drafted < 1:
        raise RooflineError(f"drafted = {drafted}: must be at least 1")
    if (step.distinct_experts is None) != (verify_experts is None):
        raise RooflineError("give the distinct experts of the plain and of the verifying step, or of neither")
    verifying = replace(step, tokens=drafted + 1, distinct_experts=verify_experts)
    drafting = draft_bytes * step.requests
    plain = step_cost(spec, replace(step, tokens=1))
    return Speculation(drafted=drafted, cost=(step_cost(spec, verifying).bytes + drafting) / plain.bytes)


def shared_experts(spec: ModelSpec, tokens: int, overlap: float = 0.0) -> float:
    """Returns the distinct experts of `tokens` tokens in a layer."""
    if not 0 <= overlap <= 1:
        raise RooflineError(f"overlap = {overlap}: must lie between 0 and 1")
    independent = max(expected_experts(spec, tokens), spec.num_active)  # rounding may fall below for one token
    return spec.num_active + (1 - overlap) * (independent - spec.num_active)


def batch_curve(
    spec: ModelSpec, step: StepShape, gb_s: float, *, overlap: float = 0.0, batches: Sequence[int] = BATCHES
) -> list[BatchPoint]:
    return [_batch_point(spec, step, gb_s, overlap, requests) for requests in batches]


def _batch_point(spec: ModelSpec, step: StepShape, gb_s: float, overlap: float, requests: int) -> BatchPoint:
    experts = shared_experts(spec, requests * step.tokens, overlap)
    cost = step_cost(spec, replace(step, requests=requests, distinct_experts=experts))
    return BatchPoint(
        requests=requests,
        distinct_experts=experts,
        bytes_a_token=cost.bytes / requests,
        flops_a_byte=cost.flops / cost.bytes,
        ceiling_tok_s=cost.tok_s(gb_s),
        request_tok_s=cost.tok_s(gb_s) / requests,
    )


def draft_curve(
    spec: ModelSpec,
    step: StepShape,
    most: int,
    *,
    acceptance: float | None = None,
    overlap: float = 0.0,
    draft_bytes: float = 0.0,
) -> list[DraftPoint]:
    """Returns a point per number of drafted tokens, up to `most`; each drafted token reads `draft_bytes`."""
    if most < 1:
        raise RooflineError(f"speculate = {most}: must be at least 1")
    return [_draft_point(spec, step, drafted, acceptance, overlap, draft_bytes) for drafted in range(1, most + 1)]


def _draft_point(
    spec: ModelSpec, step: StepShape, drafted: int, acceptance: float | None, overlap: float, draft_bytes: float
) -> DraftPoint:
    experts = shared_experts(spec, step.requests * (drafted + 1), overlap)
    plain = replace(step, distinct_experts=shared_experts(spec, step.requests, overlap))
    speculation = speculate(spec, plain, drafted, draft_bytes=drafted * draft_bytes, verify_experts=experts)
    return DraftPoint(
        drafted=drafted,
        distinct_experts=experts,
        cost=speculation.cost,
        break_even_acceptance=speculation.break_even(),
        break_even_length=speculation.cost,
        length=None if acceptance is None else speculation.length(acceptance),
        speedup=None if acceptance is None else speculation.speedup(acceptance),
    )


def best_draft(points: Sequence[DraftPoint]) -> DraftPoint | None:
    """Returns the point with the largest gain; None if none gains."""
    gaining = [point for point in points if point.speedup is not None and point.speedup > 1]
    return max(gaining, key=lambda point: point.speedup or 0.0, default=None)
