"""Figures of decoding through the whole engine, beside its floor and bare replays of a step."""

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

STAGES = ("schedule", "build", "run", "wait")  # of the engine, as its statistics time them


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Seconds from weights on the device to the first tokens, compilation included."""

    first_token_s: float  # from a prompt
    second_token_s: float  # from the first decoding step
    caches: Mapping[str, CacheUse]  # caches of compiled kernels; none on a CPU

    def as_dict(self) -> dict[str, Any]:
        return {
            "first_token_s": self.first_token_s,
            "second_token_s": self.second_token_s,
            "caches": {name: use.as_dict() for name, use in self.caches.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFigures(StepFloor):
    """Figures of one batch size from one depth on; the cost is that of the middle depth and the experts met."""

    context: int  # before the first timed step
    temperature: float = 0.0
    num_tokens: int  # in the timed part
    seconds: float
    stages_s: Mapping[str, float]  # host time over the timed part
    times: StepTimes
    bare_ms: tuple[float, ...]
    experts: ExpertCount
    reread: Rescored | None  # None if tokens were drawn at random
    is_captured: bool  # true if steps were replayed as a CUDA graph

    @property
    def way(self) -> str:
        return f"through the engine, {'CUDA graph' if self.is_captured else 'eager'}"

    @property
    def tok_s(self) -> float:
        """Tokens per second of all requests together."""
        return self.num_tokens / self.seconds

    @property
    def num_steps(self) -> float:
        return self.num_tokens / self.batch

    @property
    def step_ms(self) -> float:
        return 1e3 * self.seconds / self.num_steps

    @property
    def stages_ms(self) -> dict[str, float]:
        """Host time per step by stage; "rest" is the time outside all stages."""
        stages = {name: 1e3 * seconds / self.num_steps for name, seconds in self.stages_s.items()}
        return {**stages, "rest": self.step_ms - sum(stages.values())}

    @property
    def bare_step_ms(self) -> float:
        return statistics.median(self.bare_ms)

    @property
    def share_of_bare(self) -> float:
        """Speed as a share of that of bare replays."""
        return self.bare_step_ms / self.step_ms

    def as_dict(self) -> dict[str, Any]:
        """Returns everything except the samples."""
        return {
            "batch": self.batch,
            "context": self.context,
            "temperature": self.temperature,
            "way": self.way,
            "tokens": self.num_tokens,
            "tok_s": self.tok_s,
            **self.floor_as_dict(),
            "bytes_at_context": self.cost.step.context,
            "stages_ms_a_step": self.stages_ms,
            "bare_ms_a_step": self.bare_step_ms,
            "share_of_bare_replay": self.share_of_bare,
            "idle_share": self.times.idle_share,
            "largest_gap_ms": max(self.times.gaps_ms),
            "experts": self.experts.as_dict(),
            "reread": None if self.reread is None else self.reread.as_dict(),
            "captured": self.is_captured,
        }
