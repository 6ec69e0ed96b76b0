"""Speculation by a draft network, which reads the residuals of every step of the requests that it follows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

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
FEW_IDLE = 2  # the same once it is followed again, which begins with a probe
AGAIN_AFTER = (128, 2048)  # tokens after which it is followed again: at first, and at most; doubled if in vain


@dataclass(slots=True)
class FollowedText:
    """A request, and what the network drafted for it."""

    token_ids: Sequence[int]
    acceptance: Acceptance
    draft_ids: Sequence[int] = ()  # to follow the first `length` tokens
    length: int = 0
    num_idle: int = 0  # steps in a row for which nothing was drafted
    most_idle: int = MOST_IDLE
    preemptions: int = 0  # of the request, when it was computed from its first token or a cached prefix
    gaps: list[int] = field(default_factory=list)  # numbers of its pages that the network lacks, rising
    begin: int = 0  # position from which on the network follows; it lacks the page before, unless it begins there
    again_after: int = 0  # tokens for which it was left last

    def add_gaps(self, pages: Iterable[int]) -> None:
        """Adds numbers of pages, the first of which may be the last known one."""
        self.gaps += [number for number in pages if not self.gaps or number > self.gaps[-1]]

    def leave(self, page_size: int) -> None:
        """Ends following. It begins again at the first token of a page, as the network lacks those before."""
        count = len(self.token_ids)
        has_stayed = count - self.begin >= self.again_after
        self.again_after = AGAIN_AFTER[0] if has_stayed else min(2 * self.again_after, AGAIN_AFTER[1])
        self.begin = -(-(count + self.again_after) // page_size) * page_size
        self.num_idle, self.most_idle = 0, FEW_IDLE


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
        return plan.has_drafts or any(
            span.end > text.begin for span in plan.spans if (text := self._find_text(span)) is not None
        )

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
        jobs = map(self.find_job, plan.spans)
        counts = self._choose(parts, sum(job is not None and job.is_decoding for job in jobs))
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
        name, job = span.request.request_id, self.find_job(span)
        text = self._texts.get(name)
        if text is None or text.token_ids is not span.token_ids:
            if job is None:
                return None
            text = self._texts[name] = FollowedText(span.token_ids, Acceptance(self.policy.overall[KIND]))
        elif job is None or job.preemptions == text.preemptions:
            return text
        self._begin(text, span, job.preemptions)
        return text

    def _begin(self, text: FollowedText, span: Span, preemptions: int) -> None:
        """Follows a text from its first span on, also after a preemption; before it are cached pages."""
        size = self.drafts.page_size
        text.preemptions, text.num_idle, text.gaps = preemptions, 0, self._lacking.find_before(span)
        lacks_last = span.start % size > 0 and text.gaps[-1:] == [span.start // size]
        text.begin = (span.start // size + 1) * size if lacks_last else span.start

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
            if text is not None and end > span.start:
                begin = min(max(span.start, text.begin), end)
                self._note(text, span, begin, end)
                if begin < end:
                    job = self.find_job(span)
                    job = job if job is not None and job.is_decoding else None
                    kept = replace(span, start=begin, end=end, num_logits=0, draft_ids=())
                    parts.append(KeptRows(KeptSpan(kept, first + begin - span.start, text.gaps), text, job))
            first += span.num_tokens
        return parts

    def _note(self, text: FollowedText, span: Span, begin: int, end: int) -> None:
        """Notes that the network stores the tokens of a span from `begin` to `end`, and none before `begin`."""
        size = self.drafts.page_size
        if span.start < begin:
            self._lacking.note(span, begin, is_stored=False)
            text.add_gaps(range(span.start // size, -(-begin // size)))
        if begin < end:
            self._lacking.note(replace(span, start=begin), end, is_stored=True)
        if begin == text.begin < end and text.most_idle == FEW_IDLE:
            self.policy.hasten_probe()  # followed again: whether drafts are right now is not known

    def _choose(self, parts: Sequence[KeptRows], num_decoding: int) -> list[int]:
        """Returns the number of tokens to draft per text, for a step of `num_decoding` requests."""
        decoding = [part for part in parts if part.job is not None]
        others: list[list[float]] = [[]] * (num_decoding - len(decoding))
        chosen = self.policy.choose([*map(self._list_chances, decoding), *others], can_rest=False)
        counts = dict(zip(map(id, decoding), chosen, strict=False))
        for part in decoding:
            text = part.text
            text.num_idle = 0 if counts[id(part)] else text.num_idle + 1
            most_idle = 1 if self.policy.allowance.is_spent else text.most_idle
            if self.policy.adapts and text.num_idle >= most_idle:
                text.leave(self.drafts.page_size)
        return [counts.get(id(part), 0) for part in parts]

    def _list_chances(self, part: KeptRows) -> list[float]:
        """Returns the chances of drafted tokens, none if the network has no room to write their keys and values."""
        assert part.job is not None
        most = min(self.drafts.padded.most, part.job.most_drafted)
        has_room = most > 0 and self.reserve(part.job, self.drafter.reach) == self.drafter.reach
        return part.text.acceptance.chances(most) if has_room else []
