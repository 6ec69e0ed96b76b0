"""Speculation by a draft network, which reads the residuals of every step of the requests that it follows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from firesteel.engine.schedule.job import Job
from firesteel.engine.speculate.acceptance import Acceptance
from firesteel.engine.speculate.draft_store import DraftStore
from firesteel.engine.speculate.kept_span import KeptSpan, PendingDrafts
from firesteel.engine.speculate.lacking_pages import LackingPages
from firesteel.engine.speculate.policy import DraftPolicy, StepTime
from firesteel.engine.speculate.speculator import FindJob, cut_drafts
from firesteel.model.drafters.wiring import suspect_wiring
from firesteel.types import Plan, Span, SpanResult

_log = logging.getLogger(__name__)
KIND = 0  # of drafts: a network has one
MOST_IDLE = 8  # steps in a row without drafts, after which a request is decoded without the network


@dataclass(slots=True)
class FollowedText:
    """A request, and what the network drafted for it."""

    token_ids: Sequence[int]
    acceptance: Acceptance
    draft_ids: Sequence[int] = ()  # to follow the first `length` tokens
    length: int = 0
    num_idle: int = 0  # steps in a row for which nothing was drafted
    is_left: bool = False  # decoded without the network, which lacks keys and values of those tokens


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows of a step that stay in a text."""

    kept: KeptSpan
    text: FollowedText
    job: Job | None  # if it decodes next


class DraftingSpeculator:
    def __init__(
        self,
        drafts: DraftStore,
        policy: DraftPolicy,
        find_job: FindJob,
        *,
        reserve: Callable[[Job, int], int],
    ) -> None:
        """Drafts by the network of `drafts`.

        `reserve` takes pages for tokens after those of a job, and returns for how many.
        """
        self.drafts, self.drafter = drafts, drafts.drafter
        self.policy, self.find_job, self.reserve = policy, find_job, reserve
        self.boundaries = self.drafter.boundaries
        self._has_warned = False
        self._texts: dict[str, FollowedText] = {}
        self._lacking = LackingPages(drafts.page_size)
        self._pending: tuple[list[KeptRows], PendingDrafts] | None = None  # not read yet

    def find_drafts(self, jobs: Sequence[Job]) -> list[Sequence[int]]:
        self._read()
        return [self._find_drafts(job) for job in jobs]

    def waits(self, plan: Plan) -> bool:
        return plan.has_drafts or any(map(self._reads, plan.spans))

    def _reads(self, span: Span) -> bool:
        """Returns whether the network reads the residuals of a span, which a step launched after it would replace.

        It reads those of a left request again if that is computed from its first token.
        """
        text = self._find_text(span)
        return text is not None and (not text.is_left or span.start == 0)

    def expect(self, plan: Plan) -> None:
        """Begins to follow new requests, also those that end now: others may find their pages."""
        for span in plan.spans:
            self._find_text(span)

    def follow(self, plan: Plan, results: Sequence[SpanResult | None], features: Tensor | None) -> None:
        assert features is not None
        self._learn(plan, results)
        self._read()
        if not (parts := self._keep(plan, results)):
            return
        counts = self._choose(parts)
        with self.policy.totals.timed("draft"):
            pending = self.drafts.draft([part.kept for part in parts], counts, features)
        if any(counts):
            self._pending = parts, pending

    def _read(self) -> None:
        """Takes the tokens that were drafted last. The host does other work while they are drafted."""
        if self._pending is None:
            return
        (parts, pending), self._pending = self._pending, None
        with self.policy.totals.timed("draft"):
            drafted = pending.read()
        for part, token_ids in zip(parts, drafted, strict=True):
            part.text.draft_ids, part.text.length = token_ids, part.kept.span.end + 1

    def count(self, plan: Plan, results: Sequence[SpanResult], time: StepTime) -> None:
        if plan.has_drafts:
            self.policy.count(plan, results, time)
            self._warn()
        elif self.waits(plan):
            self.policy.count_waited(len(plan.spans), time, is_followed=True)
        elif time.is_steady:
            self.policy.count_plain(len(plan.spans), time)

    def drop(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def _warn(self) -> None:
        """Warns once if so few first drafts are accepted that the network may read wrong residuals."""
        totals = self.policy.totals
        if self._has_warned or not totals.accepted_at:
            return
        rate = totals.accepted_at[0] / totals.drafts
        if warning := suspect_wiring(rate, totals.drafts, self.drafter.usual_acceptance):
            self._has_warned = True
            _log.warning("--speculate %s: %s", self.drafter.name, warning)

    def _find_text(self, span: Span) -> FollowedText | None:
        """Returns the text of a request, None if it has ended or was cancelled."""
        name = span.request.request_id
        text = self._texts.get(name)
        if text is not None and text.token_ids is span.token_ids:
            return text
        if self.find_job(span) is None:
            return None
        text = self._texts[name] = FollowedText(span.token_ids, Acceptance(self.policy.overall[KIND]))
        text.is_left = self._lacking.precede(span)  # a cached prefix of a request that was left
        return text

    def _find_drafts(self, job: Job) -> Sequence[int]:
        text = self._texts.get(job.request.request_id)
        if text is None or text.token_ids is not job.token_ids or text.length != len(job.token_ids):
            return ()
        return cut_drafts(job, text.draft_ids)

    def _learn(self, plan: Plan, results: Sequence[SpanResult | None]) -> None:
        for span, result in zip(plan.spans, results, strict=True):
            text = self._find_text(span)
            if span.draft_ids and result is not None and text is not None:
                for acceptance in (text.acceptance, self.policy.overall[KIND]):
                    acceptance.add(len(span.draft_ids), len(result.following))

    def _keep(self, plan: Plan, results: Sequence[SpanResult | None]) -> list[KeptRows]:
        """Returns the rows that the network reads: those of accepted tokens that another one follows."""
        parts, first = [], 0
        for span, result in zip(plan.spans, results, strict=True):
            text = self._find_text(span)
            accepted = 0 if result is None else len(result.following)
            end = min(span.end + accepted, len(span.token_ids) - 1)
            if text is not None and span.start == 0:
                text.is_left, text.num_idle = False, 0  # preempted, and computed again from its first token
            if text is not None:
                self._lacking.note(span, end, is_stored=not text.is_left)
            if text is not None and not text.is_left and end > span.start:
                job = self.find_job(span)
                job = job if job is not None and job.is_decoding else None
                rows = KeptSpan(replace(span, end=end, num_logits=0, draft_ids=()), first)
                parts.append(KeptRows(rows, text, job))
            first += span.num_tokens
        return parts

    def _choose(self, parts: Sequence[KeptRows]) -> list[int]:
        """Returns the number of tokens to draft per text."""
        decoding = [part for part in parts if part.job is not None]
        chosen = self.policy.choose([*map(self._list_chances, decoding)], can_rest=False)
        counts = dict(zip(map(id, decoding), chosen, strict=True))
        most_idle = 1 if self.policy.allowance.is_spent else MOST_IDLE
        for part in decoding:
            part.text.num_idle = 0 if counts[id(part)] else part.text.num_idle + 1
            part.text.is_left = self.policy.adapts and part.text.num_idle >= most_idle
        return [counts.get(id(part), 0) for part in parts]

    def _list_chances(self, part: KeptRows) -> list[float]:
        """Returns the chances of drafted tokens, none if the network has no room to write their keys and values."""
        assert part.job is not None
        most = min(self.drafts.padded.most, part.job.most_drafted)
        has_room = most > 0 and self.reserve(part.job, self.drafter.reach) == self.drafter.reach
        return part.text.acceptance.chances(most) if has_room else []
