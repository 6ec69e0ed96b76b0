"""What decoding through an engine comes to, beside bare replays of the same step; measures nothing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from firesteel.measure.decode import ExpertCount
from firesteel.measure.rereading import Reread
from firesteel.measure.step_marks import StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Seconds from weights on the device, with what was compiled on the way."""

    first_token_s: float  # of a prompt
    second_token_s: float  # the first that a decoding step gave
    cuda_kernels_compiled: int  # that the cache on disk did not have

    def as_dict(self) -> dict[str, Any]:
        return {
            "first_token_s": self.first_token_s, "second_token_s": self.second_token_s,
            "cuda_kernels_compiled": self.cuda_kernels_compiled,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFigures:
    batch: int
    context: int
    temperature: float = 0.0
    num_tokens: int  # timed
    seconds: float
    times: StepTimes
    bare_ms: tuple[float, ...]
    experts: ExpertCount
    reread: Reread | None  # None where tokens were drawn
    is_captured: bool  # whether steps were replayed as a graph

    @property
    def tok_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def step_ms(self) -> float:
        return 1e3 * self.seconds * self.batch / self.num_tokens

    @property
    def bare_step_ms(self) -> float:
        return statistics.median(self.bare_ms)

    @property
    def share_of_bare(self) -> float:
        """Of the speed of bare replays."""
        return self.bare_step_ms / self.step_ms

    def as_dict(self) -> dict[str, Any]:
        return {
            "batch": self.batch, "context": self.context, "temperature": self.temperature,
            "tokens": self.num_tokens, "tok_s": self.tok_s,
            "ms_a_step": self.step_ms, "bare_ms_a_step": self.bare_step_ms,
            "share_of_bare_replay": self.share_of_bare, "idle_share": self.times.idle_share,
            "largest_gap_ms": max(self.times.gaps_ms), "experts": self.experts.as_dict(),
            "reread": None if self.reread is None else self.reread.as_dict(), "captured": self.is_captured,
        }  # fmt: skip
