"""Decides how many tokens to draft, from what steps cost and how often drafts were right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from firesteel.engine.speculate.acceptance import Acceptance
from firesteel.engine.speculate.choice import choose_counts
from firesteel.engine.speculate.row_costs import RowCosts
from firesteel.engine.statistics import Statistics
from firesteel.types import Plan, SpanResult

PROBE_EVERY = 128  # choices against drafts, before drafts are made all the same
PROBE_CHOICES = 16  # for which a probe stays due: steps that were launched ahead come before it


class DraftPolicy:
    """What all requests have in common: costs, acceptance and its counters."""

    def __init__(
        self, *, most_rows: int, adapts: bool, totals: Statistics, measure: Callable[[], Mapping[int, float]]
    ) -> None:
        """Limits a step to `most_rows`. Unless it `adapts`, all that can be drafted is.

        `measure` returns milliseconds by rows; `start` calls it, before the first choice.
        """
        self.most_rows, self.adapts, self.totals = most_rows, adapts, totals
        self.overall: defaultdict[int, Acceptance] = defaultdict(Acceptance)  # by kind of draft
        self._measure = measure
        self.plain: RowCosts  # of steps that neither verify nor are followed by a draft network
        self.verifying: RowCosts  # of the other decoding steps, drafting included
        self._is_measured = False
        self._num_refused = 0

    def start(self) -> None:
        """Measures steps at the first call. No step may be in flight: its inputs would be overwritten."""
        if not self._is_measured:
            measured = self._measure()
            self.plain, self.verifying = RowCosts(measured), RowCosts(measured)
            self._is_measured = True

    def choose(self, chances: Sequence[Sequence[float]]) -> list[int]:
        """Returns the number of tokens to draft per request; `chances` as in `choose_counts`."""
        if not any(chances):
            return [0] * len(chances)
        if not self.adapts:
            return self._take_all(chances)
        counts = choose_counts(chances, self.plain.predict(len(chances)), self.verifying.predict, self.most_rows)
        if any(counts):
            return counts
        self._num_refused += 1
        if self._num_refused < PROBE_EVERY:
            return counts
        if self._num_refused == PROBE_EVERY + PROBE_CHOICES:
            self._num_refused = 0
        return self._take_all([own[:1] for own in chances])

    def _take_all(self, chances: Sequence[Sequence[float]]) -> list[int]:
        return choose_counts(chances, 1.0, lambda rows: 1e-9, self.most_rows)

    def count(self, plan: Plan, results: Sequence[SpanResult], ms: float) -> None:
        """Counts a step that verified drafts and took `ms`."""
        totals, self._num_refused = self.totals, 0
        for span, result in zip(plan.spans, results, strict=True):
            if not span.draft_ids:
                continue
            accepted = len(result.following)
            totals.drafts += 1
            totals.draft_tokens += len(span.draft_ids)
            totals.accepted_tokens += accepted
            totals.accepted_at += [0] * (len(span.draft_ids) - len(totals.accepted_at))
            for position in range(accepted):
                totals.accepted_at[position] += 1
        drawn = sum(1 + len(result.following) for result in results)
        requests = len(plan.spans)
        totals.draft_saved_s += (drawn / requests * self.plain.predict(requests) - ms) / 1e3
        self.verifying.learn(plan.num_tokens, ms)
