"""Figures of measured decoding steps: speed, bytes, share of the memory floor, time per group."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from firesteel.measure.decode.experts import ExpertCount
from firesteel.measure.decode.steps import PASS_STEPS
from firesteel.measure.roofline.roofline import StepCost
from firesteel.types import KvCache


def kv_format(cache: KvCache) -> str:
    """Returns the format that the floor counts; wide pages of a CPU count as those of a GPU."""
    return "fp8" if cache.keys[0].element_size() == 1 else "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFloor:
    """The floor of a measured step: the time in which its bytes can be read at the measured ceiling."""

    cost: StepCost
    read_gb_s: float  # the ceiling, measured in the same run

    @property
    def step_ms(self) -> float:
        """Measured milliseconds per step."""
        raise NotImplementedError

    @property
    def batch(self) -> int:
        return self.cost.step.requests

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
        """Measured speed as a share of the speed at the floor."""
        return self.floor_ms / self.step_ms

    def floor_as_dict(self) -> dict[str, Any]:
        return {
            "ms_a_step": self.step_ms,
            "ms_a_token": self.step_ms / self.batch,
            "bytes_a_step": self.cost.bytes,
            "bytes_a_token": self.token_bytes,
            "read_gb_s": self.read_gb_s,
            "floor_ms": self.floor_ms,
            "floor_tok_s": self.floor_tok_s,
            "share_of_floor": self.share,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFigures(StepFloor):
    """Figures of bare steps of one batch size at one depth."""

    model: str
    way: str  # variant in which the steps ran
    samples_ms: tuple[float, ...]  # per step
    groups_ms: dict[str, float]  # time per step of all calls of a group
    groups_by: str  # how the groups were timed
    experts: ExpertCount
    checked_steps: int  # steps in which all variants gave the same bits
    checked_with_delays: bool  # true if kernels with random delays gave the same bits as well
    allocated_bytes: int

    @property
    def context(self) -> int:
        return self.cost.step.context

    @property
    def step_ms(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def tok_s(self) -> float:
        """Tokens per second of all requests together."""
        return 1e3 * self.batch / self.step_ms

    def as_dict(self) -> dict[str, Any]:
        """Returns everything except the samples."""
        return {
            "model": self.model,
            "batch": self.batch,
            "context": self.context,
            "way": self.way,
            "steps": len(self.samples_ms),
            "steps_from_the_same_depth": PASS_STEPS,
            "tok_s": self.tok_s,
            **self.floor_as_dict(),
            "groups_ms": self.groups_ms,
            "groups_by": self.groups_by,
            "checked_steps": self.checked_steps,
            "checked_with_delays": self.checked_with_delays,
            "allocated_bytes": self.allocated_bytes,
            "experts": self.experts.as_dict(),
        }
