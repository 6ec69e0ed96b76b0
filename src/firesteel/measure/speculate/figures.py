"""Figures of steps that verify drafted tokens: their time, and what drafts gain by it.

A step with R requests verifies `rows` tokens of each: the last one drawn and `rows` - 1 drafted ones. Its cost is
stated in plain steps: those of the same requests with one token each, at the same depth, measured in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from firesteel.measure.roofline.curves import Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCase:
    """A step to measure."""

    requests: int
    rows: int  # tokens of each request
    context: int  # tokens that each request holds before them

    @property
    def all_rows(self) -> int:
        return self.requests * self.rows

    @property
    def drafted(self) -> int:
        return self.rows - 1

    def __str__(self) -> str:
        return f"{self.requests} x {self.rows} rows at {self.context} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCost:
    """A measured step."""

    case: VerifyCase
    way: str  # which step ran, and how it was launched
    samples_ms: tuple[float, ...]
    predicted_cost: float  # in plain steps, by the bytes of independently routed tokens

    @property
    def step_ms(self) -> float:
        return statistics.median(self.samples_ms)

    def as_dict(self) -> dict[str, Any]:
        """Returns everything except the samples."""
        return {
            **asdict(self.case),
            "way": self.way,
            "steps": len(self.samples_ms),
            "ms_a_step": self.step_ms,
            "predicted_cost": self.predicted_cost,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpeed:
    """Speed at an acceptance: the probability that a drafted token is accepted if the one before it was."""

    acceptance: float
    length: float  # tokens per request and step
    tok_s: float  # of all requests
    speedup: float  # against plain steps


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGain:
    """What drafting `case.drafted` tokens of each request costs and gains, computed from measured steps."""

    case: VerifyCase
    plain_ms: float
    step_ms: float  # verifying step, without drafting
    draft_ms: float  # per drafted token of all requests; given, not measured
    speculation: Speculation
    speeds: tuple[DraftSpeed, ...]

    @property
    def cost(self) -> float:
        """Cost of drafting and verifying in plain steps, and so the tokens per step at which nothing is gained."""
        return self.speculation.cost

    def as_dict(self) -> dict[str, Any]:
        return {
            "drafted": self.case.drafted,
            "plain_ms": self.plain_ms,
            "draft_ms_a_token": self.draft_ms,
            "cost_in_steps": self.cost,
            "break_even_acceptance": self.speculation.break_even(),
            "speeds": [asdict(speed) for speed in self.speeds],
        }


def compute_gain(
    plain: VerifyCost, verifying: VerifyCost, acceptances: Sequence[float], *, draft_ms: float = 0.0
) -> DraftGain:
    """Compares a step with drafts with a plain one of the same requests at the same depth."""
    case = verifying.case
    step_ms = verifying.step_ms + draft_ms * case.drafted
    speculation = Speculation(drafted=case.drafted, cost=step_ms / plain.step_ms)
    speeds = tuple(
        DraftSpeed(
            acceptance=acceptance,
            length=speculation.length(acceptance),
            tok_s=1e3 * case.requests * speculation.length(acceptance) / step_ms,
            speedup=speculation.speedup(acceptance),
        )
        for acceptance in acceptances
    )
    return DraftGain(
        case=case,
        plain_ms=plain.step_ms,
        step_ms=verifying.step_ms,
        draft_ms=draft_ms,
        speculation=speculation,
        speeds=speeds,
    )


def list_gains(
    costs: Sequence[VerifyCost], acceptances: Sequence[float], *, draft_ms: float = 0.0
) -> list[DraftGain]:
    """Returns the gain of each step with drafts whose plain step was measured as well."""
    plain = {(cost.case.requests, cost.case.context): cost for cost in costs if cost.case.rows == 1}
    return [
        compute_gain(plain[place], cost, acceptances, draft_ms=draft_ms)
        for cost in costs
        if cost.case.drafted and (place := (cost.case.requests, cost.case.context)) in plain
    ]
