"""The result of a benchmark: every workload with its samples, and the server's resources."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from firesteel.lab.bench.plan import BenchPlan, BenchWorkload
from firesteel.lab.bench.roof import Roof, RoofShare
from firesteel.lab.bench.series import Series
from firesteel.lab.bench.speculation import DraftAcceptance
from firesteel.lab.client.exchange import Exchange
from firesteel.lab.memory.usage import ResourceUsage

SCHEMA = 1
PROMPT, CONTEXT, FOLLOW_UP = "prompt", "context", "prompt behind a cached context"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSample:
    """A request as result.json keeps it: without texts, times counted from its start."""

    start_s: float = 0.0
    status: int | None = None
    error: str = ""
    error_kind: str = ""
    token_times_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    counted_by: str = ""
    finish_reason: str | None = None
    ttfr_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float = 0.0

    @classmethod
    def of(cls, exchange: Exchange) -> RequestSample:
        return cls(
            start_s=exchange.start_s,
            status=exchange.status,
            error=exchange.error,
            error_kind=exchange.error_kind,
            token_times_s=tuple(round(time - exchange.start_s, 6) for time in exchange.token_times_s),
            prompt_tokens=exchange.prompt_tokens,
            cached_tokens=exchange.cached_tokens,
            output_tokens=exchange.output_tokens,
            counted_by=exchange.counted_by,
            finish_reason=exchange.finish_reason,
            ttfr_s=exchange.ttfr_s,
            ttft_s=exchange.ttft_s,
            e2e_s=exchange.e2e_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One workload, or one of its two phases if the context is cached first."""

    workload: BenchWorkload
    phase: str = PROMPT
    series: dict[str, Series] = field(default_factory=dict)
    shares: dict[str, RoofShare] = field(default_factory=dict)  # of pp_tok_s and tg_tok_s
    failures: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # why a figure may be wrong although no request failed
    batches: tuple[tuple[RequestSample, ...], ...] = ()  # the requests of each run

    @property
    def name(self) -> str:
        return self.workload.name if self.phase == PROMPT else f"{self.workload.name}, {self.phase}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "workload": asdict(self.workload),
            "phase": self.phase,
            "series": {name: series.as_dict() for name, series in self.series.items()},
            "shares": {name: share.as_dict() for name, share in self.shares.items()},
            "failures": list(self.failures),
            "doubts": list(self.doubts),
            "batches": [[asdict(sample) for sample in batch] for batch in self.batches],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The result of a benchmark. Fields with defaults are missing in results of earlier versions."""

    rows: list[BenchRow] = field(default_factory=list)
    url: str = ""
    model: str = ""
    plan: BenchPlan = field(default_factory=BenchPlan)
    roof: Roof | None = None
    formats: dict[str, str] = field(default_factory=dict)  # as the server states them; empty: unknown
    latency_s: float = 0.0  # of the connection; subtracted from a prompt's time to the first response
    tokens_a_word: float = 0.0
    max_context: int | None = None
    left_out: list[str] = field(default_factory=list)  # workloads that did not fit, and runs for lack of time
    startup_s: float | None = None
    seconds: float = 0.0
    usage: ResourceUsage | None = None
    speculation: DraftAcceptance | None = None  # None: nothing was drafted, or the server does not say

    @property
    def failures(self) -> list[str]:
        return [f"{row.name}: {failure}" for row in self.rows for failure in row.failures]

    @property
    def doubts(self) -> list[str]:
        return [f"{row.name}: {doubt}" for row in self.rows for doubt in row.doubts]

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "url": self.url,
            "model": self.model,
            "plan": self.plan.as_dict(),
            "roof": None if self.roof is None else asdict(self.roof),
            "formats": self.formats,
            "latency_s": self.latency_s,
            "tokens_a_word": self.tokens_a_word,
            "max_context": self.max_context,
            "left_out": self.left_out,
            "startup_s": self.startup_s,
            "seconds": self.seconds,
            "usage": None if self.usage is None else self.usage.as_dict(),
            "speculation": None if self.speculation is None else self.speculation.as_dict(),
            "rows": [row.as_dict() for row in self.rows],
        }
