"""What decoding through an engine comes to, beside its floor and bare replays of a step; measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firesteel.measure.decode.experts import ExpertCount
from firesteel.measure.decode.figures import StepFloor
from firesteel.measure.decode.kernel_caches import CacheUse
from firesteel.measure.decode.marks import StepTimes
from firesteel.measure.tokens.rescore import Rescored


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Seconds from weights on the device, with what was compiled on the way."""

    first_token_s: float  # of a prompt
    second_token_s: float  # the first that a decoding step gave
    caches: Mapping[str, CacheUse]  # of compiled kernels; none on a CPU

    def as_dict(self) -> dict[str, Any]:
        return {
            "first_token_s": self.first_token_s, "second_token_s": self.second_token_s,
            "caches": {name: use.as_dict() for name, use in self.caches.items()},
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFigures(StepFloor):
    """Of one batch size from one depth on; the cost is at the middle depth, with the experts that were met."""

    context: int  # before the first timed step
    temperature: float = 0.0
    num_tokens: int  # timed
    seconds: float
    stages_s: Mapping[str, float]  # of the host, over the timed part
    times: StepTimes
    bare_ms: tuple[float, ...]
    experts: ExpertCount
    reread: Rescored | None  # None where tokens were drawn
    is_captured: bool  # whether steps were replayed as a graph

    @property
    def way(self) -> str:
        return f"through the engine, {'CUDA graph' if self.is_captured else 'eager'}"

    @property
    def tok_s(self) -> float:
        """Of all requests together."""
        return self.num_tokens / self.seconds

    @property
    def num_steps(self) -> float:
        return self.num_tokens / self.batch

    @property
    def step_ms(self) -> float:
        return 1e3 * self.seconds / self.num_steps

    @property
    def stages_ms(self) -> dict[str, float]:
        """Of the host in a step. What no stage accounts for is the rest."""
        stages = {name: 1e3 * seconds / self.num_steps for name, seconds in self.stages_s.items()}
        return {**stages, "rest": self.step_ms - sum(stages.values())}

    @property
    def bare_step_ms(self) -> float:
        return statistics.median(self.bare_ms)

    @property
    def share_of_bare(self) -> float:
        """Of the speed of bare replays."""
        return self.bare_step_ms / self.step_ms

    def as_dict(self) -> dict[str, Any]:
        """All but the samples."""
        return {
            "batch": self.batch, "context": self.context, "temperature": self.temperature, "way": self.way,
            "tokens": self.num_tokens, "tok_s": self.tok_s, **self.floor_as_dict(),
            "bytes_at_context": self.cost.step.context, "stages_ms_a_step": self.stages_ms,
            "bare_ms_a_step": self.bare_step_ms, "share_of_bare_replay": self.share_of_bare,
            "idle_share": self.times.idle_share, "largest_gap_ms": max(self.times.gaps_ms),
            "experts": self.experts.as_dict(),
            "reread": None if self.reread is None else self.reread.as_dict(), "captured": self.is_captured,
        }  # fmt: skip
