"""Tokens of one step on their way to the host, then what each request drew; knows no draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.engine.sample.logprobs import Logprobs, TokenLogprobs
from firesteel.engine.sample.row import Drawn, SampleRow
from firesteel.engine.transfer import Download
from firesteel.model.report import Report


@dataclass(frozen=True, slots=True)
class Fetched:
    """`read` waits for this step and for nothing that was launched after it."""

    rows: Sequence[SampleRow]
    report: Download  # of token ids [R] and the logit of each, or of both as a Report
    logprobs: Download | None = None  # of the rows that ask, in their order

    @classmethod
    def begin(
        cls, rows: Sequence[SampleRow], token_ids: Tensor, best: Tensor, logprobs: Logprobs | None = None
    ) -> Fetched:
        """`best` [R] fp32: the largest logit that could be drawn; not finite where none can."""
        scored = None if logprobs is None else Download(*logprobs.tensors())
        return cls(rows, Download(token_ids, best), scored)

    @classmethod
    def begin_plain(cls, rows: Sequence[SampleRow], report: Report) -> Fetched:
        """Of rows that are plain, as a step left them; padding follows."""
        return cls(rows, Download(report.both))

    def read(self) -> list[Drawn]:
        token_ids, best = self._read_report()
        chosen = torch.where(best.isfinite(), token_ids, -1).tolist()
        scored = iter(self._read_logprobs())
        return [
            Drawn(
                token_id=token,
                logprobs=None if row.params.logprobs is None else next(scored),
                error=_fault(row.name, largest) if token < 0 else None,
                is_refused=largest == float("-inf"),
            )
            for row, token, largest in zip(self.rows, chosen, best.tolist(), strict=True)
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


def _fault(name: str, largest: float) -> str:
    if largest == float("-inf"):
        return f"{name}: no token can be drawn: grammar, allowed tokens and min_tokens leave none"
    return f"{name}: the model's logits hold NaN or infinity: the weights or a kernel are at fault"
