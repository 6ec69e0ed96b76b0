"""Tokens of one step whose copy to the host has been started, and their result per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from torch import Tensor

from firesteel.engine.sample.logprobs import Logprobs
from firesteel.engine.sample.row import SampleRow
from firesteel.engine.transfer import Download
from firesteel.model.step_ints import StepResult
from firesteel.types import SpanResult, TokenLogprobs


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """The tokens of one step. `read` waits for this step only, not for steps launched after it."""

    rows: Sequence[SampleRow]
    result: Download  # token ids [R] and the largest logit of each row, or both as a StepResult
    logprobs: Download | None = None  # of the rows that request them, in their order

    @classmethod
    def begin(
        cls, rows: Sequence[SampleRow], token_ids: Tensor, best: Tensor, logprobs: Logprobs | None = None
    ) -> PendingTokens:
        """Starts the copies; `best` [R] fp32 is the largest logit that could be drawn, not finite if none can."""
        scored = None if logprobs is None else Download(*logprobs.tensors())
        return cls(rows, Download(token_ids, best), scored)

    @classmethod
    def begin_plain(cls, rows: Sequence[SampleRow], result: StepResult) -> PendingTokens:
        """Starts the copy of a decode step's own result; all rows are plain, and padding may follow them."""
        return cls(rows, Download(result.both))

    def read(self) -> list[SpanResult]:
        token_ids, best = self._read_result()
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

    def _read_result(self) -> tuple[Tensor, Tensor]:
        copied = self.result.read()
        if len(copied) == 2:
            return copied[0], copied[1]
        result, count = StepResult(copied[0]), len(self.rows)
        return result.token_ids[:count], result.best[:count]

    def _read_logprobs(self) -> list[TokenLogprobs]:
        if self.logprobs is None:
            return []
        counts = [row.params.logprobs for row in self.rows if row.params.logprobs is not None]
        return Logprobs.of(self.logprobs.read()).read(counts)


def _describe_fault(name: str, largest: float) -> str:
    if largest == -inf:
        return f"{name}: no token can be drawn: grammar, allowed tokens, bad words and min_tokens leave none"
    return f"{name}: the model's logits hold NaN or infinity: the weights or a kernel are at fault"
