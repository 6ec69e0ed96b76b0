"""Metrics of drafted tokens: vLLM's names, and our own for the time that drafting takes and saves.

An engine counts from its own start. The counters here add up all engines of this process, so that they do not fall
when one is restarted; what an engine counted between its last reading and its death is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from firesteel.engine.statistics import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTotals:
    """Sums over all engines so far."""

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    accepted_at: tuple[float, ...] = ()  # by position
    draft_s: float = 0.0
    draft_saved_s: float = 0.0

    @classmethod
    def of(cls, statistics: Statistics) -> DraftTotals:
        return cls(
            drafts=statistics.drafts,
            draft_tokens=statistics.draft_tokens,
            accepted_tokens=statistics.accepted_tokens,
            accepted_at=tuple(statistics.accepted_at),
            draft_s=statistics.draft_s,
            draft_saved_s=statistics.draft_saved_s,
        )

    def plus(self, other: DraftTotals) -> DraftTotals:
        longest = max(len(self.accepted_at), len(other.accepted_at))
        return DraftTotals(
            drafts=self.drafts + other.drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            accepted_at=tuple(self.at(position) + other.at(position) for position in range(longest)),
            draft_s=self.draft_s + other.draft_s,
            draft_saved_s=self.draft_saved_s + other.draft_saved_s,
        )

    def at(self, position: int) -> float:
        return self.accepted_at[position] if position < len(self.accepted_at) else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a request gains in a step with drafts, the model's own included; 1 if nothing was drafted."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0


class DraftMetrics:
    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._model = model_name
        self._ended = DraftTotals()  # of engines that died
        self._current = DraftTotals()  # of the running engine, or of the last one
        self._shown = DraftTotals()
        self._num_deaths = 0

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["model_name"], registry=registry).labels(model_name)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["model_name"], registry=registry).labels(model_name)

        self._drafts = counter("vllm:spec_decode_num_drafts", "Times that drafts of a request were verified")
        self._draft_tokens = counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens")
        self._accepted_tokens = counter("vllm:spec_decode_num_accepted_tokens", "Accepted drafted tokens")
        self._accepted_at = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafts accepted at least up to each position",
            ["model_name", "position"],
            registry=registry,
        )
        self._seconds = counter("firesteel_draft_seconds", "Seconds spent on drafting")
        self._saved = gauge(
            "firesteel_draft_saved_seconds",
            "Estimated seconds that the same tokens would have taken without drafts, less what they took",
        )
        self._tokens_per_step = gauge(
            "firesteel_draft_tokens_per_step", "Tokens per request and step with drafts, the model's own included"
        )

    def update(self, statistics: Statistics | None, *, num_deaths: int) -> None:
        """Takes the engine's counters; None if no engine answered.

        `num_deaths` is that of the time when they were asked for.
        """
        if num_deaths != self._num_deaths:
            self._ended, self._current = self._ended.plus(self._current), DraftTotals()
            self._num_deaths = num_deaths
        if statistics is not None:
            self._current = DraftTotals.of(statistics)
        before, now = self._shown, self._ended.plus(self._current)
        self._drafts.inc(now.drafts - before.drafts)
        self._draft_tokens.inc(now.draft_tokens - before.draft_tokens)
        self._accepted_tokens.inc(now.accepted_tokens - before.accepted_tokens)
        for position, count in enumerate(now.accepted_at):
            self._accepted_at.labels(self._model, str(position)).inc(count - before.at(position))
        self._seconds.inc(now.draft_s - before.draft_s)
        self._saved.set(now.draft_saved_s)
        self._tokens_per_step.set(now.tokens_per_step)
        self._shown = now
