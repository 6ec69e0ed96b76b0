"""What a measured decoding step comes to: speed, bytes, share of the floor, time by group; measures nothing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from firesteel.measure.decode.step_floor import StepFloor
from firesteel.measure.decode.steps import PASS_STEPS, ExpertCount


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFigures(StepFloor):
    """Of one batch size at one depth."""

    model: str
    way: str  # how the steps were run
    samples_ms: tuple[float, ...]  # one a step
    groups_ms: dict[str, float]  # all calls of a group in a step
    groups_by: str  # how those were found
    experts: ExpertCount
    checked_steps: int  # that every way gave to the same bits
    checked_with_delays: bool  # as well, by kernels that dawdled
    allocated_bytes: int

    @property
    def context(self) -> int:
        return self.cost.step.context

    @property
    def step_ms(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def tok_s(self) -> float:
        """Of all requests together."""
        return 1e3 * self.batch / self.step_ms

    def as_dict(self) -> dict[str, Any]:
        """All but the samples."""
        return {
            "model": self.model, "batch": self.batch, "context": self.context, "way": self.way,
            "steps": len(self.samples_ms), "steps_from_the_same_depth": PASS_STEPS, "tok_s": self.tok_s,
            **self.floor_as_dict(),
            "groups_ms": self.groups_ms, "groups_by": self.groups_by, "checked_steps": self.checked_steps,
            "checked_with_delays": self.checked_with_delays, "allocated_bytes": self.allocated_bytes,
            "experts": self.experts.as_dict(),
        }  # fmt: skip
