"""What a measured decoding step comes to: speed, bytes, share of the floor, time by group; measures nothing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from firesteel.measure.decode import PASS_STEPS, ExpertCount
from firesteel.measure.roofline import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFigures:
    """Of one batch size at one depth. The floor is the time that reading a step's bytes takes at the ceiling."""

    model: str
    way: str  # how the steps were run
    samples_ms: tuple[float, ...]  # one a step
    groups_ms: dict[str, float]  # all calls of a group in a step
    groups_by: str  # how those were found
    cost: StepCost
    read_gb_s: float  # the ceiling, measured in the same run
    experts: ExpertCount
    checked_steps: int  # that every way gave to the same bits
    checked_with_delays: bool  # as well, by kernels that dawdled
    allocated_bytes: int

    @property
    def batch(self) -> int:
        return self.cost.step.requests

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

    @property
    def token_bytes(self) -> float:
        return self.cost.bytes / self.batch

    @property
    def floor_ms(self) -> float:
        return 1e3 * self.cost.seconds(self.read_gb_s)

    @property
    def floor_tok_s(self) -> float:
        return self.cost.tok_s(self.read_gb_s)

    @property
    def share(self) -> float:
        """Of the floor's speed that was reached."""
        return self.floor_ms / self.step_ms

    def as_dict(self) -> dict[str, Any]:
        """All but the samples."""
        return {
            "model": self.model, "batch": self.batch, "context": self.context, "way": self.way,
            "steps": len(self.samples_ms), "steps_from_the_same_depth": PASS_STEPS, "ms_a_step": self.step_ms,
            "ms_a_token": self.step_ms / self.batch, "tok_s": self.tok_s, "bytes_a_step": self.cost.bytes,
            "bytes_a_token": self.token_bytes, "read_gb_s": self.read_gb_s, "floor_ms": self.floor_ms,
            "floor_tok_s": self.floor_tok_s, "share_of_floor": self.share,
            "groups_ms": self.groups_ms, "groups_by": self.groups_by, "checked_steps": self.checked_steps,
            "checked_with_delays": self.checked_with_delays, "allocated_bytes": self.allocated_bytes,
            "experts": self.experts.as_dict(),
        }  # fmt: skip
