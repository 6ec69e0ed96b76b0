"""Speculation by copying from a request's own text: the drafts cost nothing, and exist only where it repeats."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from firesteel.engine.schedule.job import Job
from firesteel.engine.speculate.acceptance import Acceptance
from firesteel.engine.speculate.ngram import NgramIndex
from firesteel.engine.speculate.policy import DraftPolicy, StepTime
from firesteel.engine.speculate.speculator import FindJob, cut_drafts
from firesteel.types import Plan, SpanResult

MOST_COPIED = 7  # tokens by default
LONGER = (4, 8, 16)  # common tokens before a copy from which on it is of the next kind: it is right more often


@dataclass(slots=True)
class CopiedText:
    """A request's text, and how often copies were right, by kind."""

    index: NgramIndex
    acceptances: list[Acceptance]
    kind: int = 0  # of the copy drafted last

    def find(self) -> tuple[int, int] | None:
        """Returns the place to copy from and the kind of the copy, or None."""
        place = self.index.find()
        return None if place is None else (place, bisect_right(LONGER, self.index.count_common(place)))


class CopyingSpeculator:
    boundaries: tuple[int, ...] = ()

    def __init__(self, policy: DraftPolicy, find_job: FindJob, *, most: int = 0) -> None:
        """Drafts at most `most` tokens, 0: the default number."""
        self.policy, self.find_job = policy, find_job
        self.most = most or MOST_COPIED
        self._texts: dict[str, CopiedText] = {}
        self._has_drafted = False  # in the step before
        self._chosen: tuple[list[tuple[str, int]], list[int]] = [], []  # texts by name and length, and their counts

    def find_drafts(self, jobs: Sequence[Job]) -> list[Sequence[int]]:
        drafts: list[Sequence[int]] = []
        texts = [self._find_text(job) for job in jobs]
        for job, text, count in zip(jobs, texts, self._choose(jobs, texts), strict=True):
            copy = text.find() if count else None
            if copy is None:
                drafts.append(())
                continue
            place, text.kind = copy
            drafts.append(cut_drafts(job, text.index.copy_after(place, count)))
        return drafts

    def waits(self, plan: Plan) -> bool:
        jobs = [job for span in plan.spans if (job := self.find_job(span)) is not None]
        return plan.has_drafts or any(self._choose(jobs, [self._find_text(job) for job in jobs]))

    def expect(self, plan: Plan) -> None:
        """Needs no look: texts that end are not copied from again."""

    def follow(self, plan: Plan, results: Sequence[SpanResult | None], features: Tensor | None) -> None:
        for span, result in zip(plan.spans, results, strict=True):
            text = self._texts.get(span.request.request_id)
            if span.draft_ids and result is not None and text is not None:
                for acceptance in (text.acceptances[text.kind], self.policy.overall[text.kind]):
                    acceptance.add(len(span.draft_ids), len(result.following))

    def count(self, plan: Plan, results: Sequence[SpanResult], time: StepTime) -> None:
        if plan.has_drafts:
            self.policy.count(plan, results, time)
        elif time.is_steady:
            self.policy.count_plain(len(plan.spans), time)
        elif self._has_drafted:
            self.policy.count_waited(len(plan.spans), time, is_followed=False)
        self._has_drafted = plan.has_drafts

    def drop(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def _find_text(self, job: Job) -> CopiedText:
        name = job.request.request_id
        text = self._texts.get(name)
        if text is None or text.index.token_ids is not job.token_ids:
            acceptances = [Acceptance(self.policy.overall[kind]) for kind in range(len(LONGER) + 1)]
            text = self._texts[name] = CopiedText(NgramIndex(job.token_ids), acceptances)
        return text

    def _choose(self, jobs: Sequence[Job], texts: Sequence[CopiedText]) -> list[int]:
        """Returns the number of tokens to copy per request: the same answer until a text grows."""
        state = [(job.request.request_id, len(job.token_ids)) for job in jobs]
        if self._chosen[0] != state:
            chances = [self._list_chances(job, text) for job, text in zip(jobs, texts, strict=True)]
            self._chosen = state, self.policy.choose(chances)
        return self._chosen[1]

    def _list_chances(self, job: Job, text: CopiedText) -> list[float]:
        """Returns the chances of copied tokens, none if there is no copy."""
        most = min(self.most, job.most_drafted)
        copy = text.find() if most > 0 else None
        return [] if copy is None else text.acceptances[copy[1]].chances(most)
