"""The rows of a step that stay in a text, and the tokens drafted after them, on their way from the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from firesteel.engine.transfer import Download
from firesteel.model.host_batch import Ints
from firesteel.types import Span


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """Rows that stay in a text, each followed by a known token, and their place among all rows of the step."""

    span: Span
    first: int

    @property
    def rows(self) -> Ints:
        return np.arange(self.first, self.first + self.span.num_tokens)

    @property
    def followers(self) -> Ints:
        """The token after each row."""
        span = self.span
        return np.asarray(span.token_ids[span.start + 1 : span.end + 1], dtype=np.int64)

    def head(self) -> KeptSpan:
        """Returns all rows but the last."""
        return KeptSpan(replace(self.span, end=self.span.end - 1), self.first)

    def tail(self) -> KeptSpan:
        """Returns the last row."""
        last = self.span.end - 1
        return KeptSpan(replace(self.span, start=last), self.first + last - self.span.start)


def split_spans(
    spans: Sequence[KeptSpan], counts: Sequence[int], most_rows: int
) -> tuple[list[KeptSpan], dict[int, KeptSpan]]:
    """Returns rows of spans of more than `most_rows`, and by number the other spans and rows.

    The last row of a span after which tokens are drafted is among the latter.
    """
    long: list[KeptSpan] = []
    others: dict[int, KeptSpan] = {}
    for number, (kept, count) in enumerate(zip(spans, counts, strict=True)):
        if kept.span.num_tokens <= most_rows:
            others[number] = kept
        elif count:
            long.append(kept.head())
            others[number] = kept.tail()
        else:
            long.append(kept)
    return long, others


@dataclass(frozen=True, slots=True)
class PendingDrafts:
    """Drafted tokens of spans, which may be computed in parts."""

    counts: Sequence[int]
    _parts: list[tuple[Sequence[int], Download]] = field(default_factory=list)

    def add(self, spans: Sequence[int], drafted: Tensor) -> None:
        """Adds the tokens [R, K] drafted after the spans of these numbers."""
        if any(self.counts[number] for number in spans):
            self._parts.append((spans, Download(drafted)))

    def read(self) -> list[list[int]]:
        """Returns the tokens of each span; waits for the device."""
        drafts: list[list[int]] = [[] for _ in self.counts]
        for spans, download in self._parts:
            for number, token_ids in zip(spans, download.read()[0].tolist(), strict=False):
                drafts[number] = token_ids[: self.counts[number]]
        return drafts
