"""Decides how many tokens to draft, from what steps cost and how often drafts were right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.engine.speculate.acceptance import Acceptance
from firesteel.engine.speculate.allowance import Allowance
from firesteel.engine.speculate.choice import choose_counts, list_gains
from firesteel.engine.speculate.row_costs import RowCosts
from firesteel.engine.statistics import Statistics
from firesteel.types import Plan, SpanResult

PROBE_EVERY = (6, 128)  # choices against drafts before a probe: at first, and at most; doubled after each in vain
CHECK_EVERY = (16, 512)  # steps with drafts before plain ones are timed again: at first, and at most
DUE_CHOICES = 16  # for which a probe or a check stays due: steps that were launched ahead come before it
CHECKED_STEPS = 4  # plain steps timed by a check
TOLD_POSITIONS = 8  # of which acceptance and gain are told


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long a decoding step took, from the end of the one before."""

    ms: float
    before_ms: float = 0.0  # of it until the step was launched, drafting included; 0 if it was launched ahead
    is_steady: bool = True  # the host's share was hidden as far as it can be


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
        self.allowance = Allowance()
        self.reasons: defaultdict[str, int] = defaultdict(int)  # choices by outcome
        self._measure = measure
        self.measured: Mapping[int, float] = {}
        self.plain: RowCosts  # of steps that neither verify nor are followed by a draft network
        self.verifying: RowCosts  # of the other decoding steps, drafting included
        self._launched: RowCosts  # of those, from the launch on
        self._probe = Turn(*PROBE_EVERY)
        self._check = Turn(*CHECK_EVERY)
        self._num_checked = 0  # plain steps timed since the last with drafts

    def start(self) -> None:
        """Measures steps at the first call. No step may be in flight: its inputs would be overwritten."""
        if not self.measured:
            self.measured = self._measure()
            self.plain, self.verifying, self._launched = (RowCosts(self.measured) for _ in range(3))

    def forget(self) -> None:
        """Forgets what was learnt of drafts, not what steps cost."""
        self.overall.clear()
        self.reasons.clear()
        self.allowance = Allowance()
        self._probe, self._check, self._num_checked = Turn(*PROBE_EVERY), Turn(*CHECK_EVERY), 0

    def choose(self, chances: Sequence[Sequence[float]], *, can_rest: bool = True) -> list[int]:
        """Returns the number of tokens to draft per request; `chances` as in `choose_counts`.

        Drafts are left out now and then to time plain steps, if they `can_rest`.
        """
        none = [0] * len(chances)
        if not any(chances):
            return none
        if not self.adapts:
            return self._take_all(chances)
        counts = choose_counts(chances, self.plain.predict(len(chances)), self.verifying.predict, self.most_rows)
        if not any(counts):
            if self.allowance.has_probe and self._probe.comes():
                return self._tell("probe", self._take_all([own[:1] for own in chances]))
            return self._tell("no gain expected", none)
        if self.allowance.is_spent:
            return self._tell("lost more than allowed", none)
        if can_rest and self._check.is_due:
            if self._num_checked < CHECKED_STEPS and self._check.comes():
                return self._tell("plain steps timed", none)
            self._check.begin(is_longer=True)
        return self._tell("drafted", counts)

    def _tell(self, reason: str, counts: list[int]) -> list[int]:
        self.reasons[reason] += 1
        return counts

    def _take_all(self, chances: Sequence[Sequence[float]]) -> list[int]:
        return choose_counts(chances, 1.0, lambda rows: 1e-9, self.most_rows)

    def count(self, plan: Plan, results: Sequence[SpanResult], time: StepTime) -> None:
        """Counts a step that verified drafts."""
        totals, ms = self.totals, time.ms
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
        plain_ms = self.plain.predict(requests)
        totals.draft_saved_s += (drawn / requests * plain_ms - ms) / 1e3
        self.allowance.count(self.verifying.limit(plan.num_tokens, ms), plain_ms, drawn / requests)
        self._learn_verifying(plan.num_tokens, time)
        self._check.pass_one()
        self._num_checked = 0
        # A probe that gained time is followed by the next one at once: the text may have become predictable.
        has_gained = ms < drawn / requests * plain_ms
        self._probe.begin(is_longer=not has_gained, is_due=has_gained)

    def count_waited(self, requests: int, time: StepTime, *, is_followed: bool) -> None:
        """Counts a step without drafts that drafting delayed: it was waited for, or a network follows the step."""
        self.allowance.count(self.verifying.limit(requests, time.ms), self.plain.predict(requests), 1.0)
        if is_followed:
            self._learn_verifying(requests, time)

    def count_plain(self, requests: int, time: StepTime) -> None:
        """Counts a step that ran as it would have without speculation."""
        self.allowance.count_plain()
        self.plain.learn(requests, time.ms)
        self.verifying.adopt(self.plain)
        self._num_checked += 1

    def _learn_verifying(self, rows: int, time: StepTime) -> None:
        self.verifying.learn(rows, time.ms)
        self._launched.learn(rows, time.ms - time.before_ms)
        self.plain.adopt(self._launched)

    def hasten_probe(self) -> None:
        """Has the next choices against drafts be a probe, as far as losses allow one."""
        self._probe.hasten()

    def describe(self, requests: int = 1) -> dict[str, Any]:
        """Returns what choices are made from, for steps of `requests`: why something is drafted, or nothing."""
        chances = {kind: acceptance.chances(TOLD_POSITIONS) for kind, acceptance in sorted(self.overall.items())}
        plain_ms, most = self.plain.predict(requests), self.most_rows // requests - 1
        return {
            "choices": dict(self.reasons),
            "measured_ms": dict(self.measured),
            "plain_ms": plain_ms,
            "verifying_ms": {
                rows: self.verifying.predict(rows * requests) for rows in range(1, min(most, TOLD_POSITIONS) + 2)
            },
            "accepted_up_to": {str(kind): own for kind, own in chances.items()},
            "expected_gain": {
                str(kind): list_gains(own[:most], requests, plain_ms, self.verifying.predict)
                for kind, own in chances.items()
            },
            "allowance_steps": self.allowance.steps,
        }


class Turn:
    """Something that comes at intervals, which double up to a limit."""

    def __init__(self, first: int, most: int) -> None:
        self._interval, self._first, self._most = first, first, most
        self._passed = 0

    @property
    def is_due(self) -> bool:
        return self._passed >= self._interval

    def pass_one(self) -> None:
        self._passed += 1

    def comes(self) -> bool:
        """Counts a chance for it and returns whether it is due, which it stays for some chances."""
        self._passed += 1
        if self._passed < self._interval:
            return False
        if self._passed >= self._interval + DUE_CHOICES:
            self.begin(is_longer=True)
        return True

    def hasten(self) -> None:
        """Makes it due, at the intervals it had."""
        self._passed = max(self._passed, self._interval)

    def begin(self, *, is_longer: bool, is_due: bool = False) -> None:
        """Begins the next interval, at its end if it `is_due` at once."""
        self._interval = min(2 * self._interval, self._most) if is_longer else self._first
        self._passed = self._interval if is_due else 0
