"""Tokens of one step whose copy to the host has been started, and their result per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from torch import Tensor

from firesteel.engine.sample.logprobs import Logprobs
from firesteel.engine.sample.row import SampleRow
from firesteel.engine.transfer import Download
from firesteel.model.report import Report
from firesteel.types import SpanResult, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """`read` waits for this step only, not for steps launched after it."""

    rows: Sequence[SampleRow]
    report: Download  # token ids [R] and the largest logit of each row, or both as a Report
    logprobs: Download | None = None  # of the rows that request them, in their order

    @classmethod
    def begin(
        cls, rows: Sequence[SampleRow], token_ids: Tensor, best: Tensor, logprobs: Logprobs | None = None
    ) -> PendingTokens:
        """Starts the copies; `best` [R] fp32 is the largest logit that could be drawn, not finite if none can."""
        scored = None if logprobs is None else Download(*logprobs.tensors())
        return cls(rows, Download(token_ids, best), scored)

    @classmethod
    def begin_plain(cls, rows: Sequence[SampleRow], report: Report) -> PendingTokens:
        """Starts the copy of a decode step's own report; all rows are plain, and padding may follow them."""
        return cls(rows, Download(report.both))

    def read(self) -> list[SpanResult]:
        token_ids, best = self._read_report()
        scored = iter(self._read_logprobs())
        return [
            SpanResult(
                token_id=token if isfinite(largest) else None,
                logprobs=None if row.params.logprobs is None else next(scored),
                error=None if isfinite(largest) else _describe_fault(row.name, largest),
                is_refused=largest == -inf,
            )
            for row, token, largest in zip(self.rows, token_ids.tolist(), best.tolist(), strict=True)
        ]

    def _read_report(self) -> tuple[Tensor, Tensor]:
        copied = self.report.read()
        if len(copied) == 2:
            return copied[0], copied[1]
        report, count = Report(copied[0]), len(self.rows)
        return report.token_ids[:count], report.best[:count]

    def _read_logprobs(self) -> list[TokenLogprobs]:
        if self.logprobs is None:
            return []
        counts = [row.params.logprobs for row in self.rows if row.params.logprobs is not None]
        return Logprobs.of(self.logprobs.read()).read(counts)


def _describe_fault(name: str, largest: float) -> str:
    if largest == -inf:
        return f"{name}: no token can be drawn: grammar, allowed tokens and min_tokens leave none"
    return f"{name}: the model's logits hold NaN or infinity: the weights or a kernel are at fault"
