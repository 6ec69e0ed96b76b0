"""The rows of a step that stay in a text, and the tokens drafted after them, on their way from the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from firesteel.engine.step.batch import lay_out
from firesteel.engine.transfer import Download
from firesteel.model.host_batch import HostBatch, Ints
from firesteel.types import Plan, Span


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """Rows that stay in a text, each followed by a known token, and their place among all rows of the step."""

    span: Span
    first: int
    gaps: Sequence[int] = ()  # numbers of earlier pages of the text that the network lacks, rising

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
        return replace(self, span=replace(self.span, end=self.span.end - 1))

    def tail(self) -> KeptSpan:
        """Returns the last row."""
        last = self.span.end - 1
        return replace(self, span=replace(self.span, start=last), first=self.first + last - self.span.start)


def lay_out_kept(spans: Sequence[KeptSpan], page_size: int, reach: int) -> HostBatch:
    """Returns the rows' places as the network counts them: as if its texts had no tokens in the gaps."""
    host = lay_out(Plan(spans=[kept.span for kept in spans]), page_size, reach)
    if not any(kept.gaps for kept in spans):
        return host
    table = host.full_table.copy()
    for row, kept in zip(table, spans, strict=True):
        held = np.delete(row, kept.gaps)
        row[: len(held)] = held  # what follows is not read: the text is shorter
    left_out = page_size * np.array([len(kept.gaps) for kept in spans])
    return replace(
        host,
        positions=host.positions - left_out.repeat(np.diff(host.query_starts)),
        kv_lens=host.kv_lens - left_out,
        full_table=table,
    )


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
