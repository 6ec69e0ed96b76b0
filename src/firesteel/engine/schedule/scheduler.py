"""Chooses what each step computes, first come first served.

Decoding requests go first, then chunks of prompts fill the step, or as much of it as decoding requests may be
delayed by. All running requests arrived before all waiting ones. If pages run out, the youngest running request is
preempted: it gives up its pages and waits again; its generated tokens are kept and recomputed. The oldest is never
preempted, so every request gets its turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from firesteel.config import BatchConfig
from firesteel.engine.cache.page_tables import PageTables
from firesteel.engine.schedule.job import Job
from firesteel.engine.schedule.plan_draft import PlanDraft
from firesteel.engine.schedule.request_room import check_room
from firesteel.errors import RequestError
from firesteel.types import Plan, Request, RequestStatistics, Span, SpanResult, StepOutput

FindDrafts = Callable[[Sequence[Job]], Sequence[Sequence[int]]]


class Scheduler:
    def __init__(
        self,
        tables: PageTables,
        config: BatchConfig,
        *,
        max_context: int,
        max_prompt_logits: int,
        find_room: Callable[[int], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_prompt_logits` limits the prompt tokens per step whose logits are returned, each [V].

        `find_room` returns how many prompt tokens, at least one, a step may take beside a number of decoding
        requests; without it prompts fill the step.
        """
        self.tables = tables
        self.config = config
        self.max_context = max_context
        self.max_prompt_logits = max_prompt_logits
        self.find_room = find_room
        self.find_drafts: FindDrafts | None = None
        self.most_rows = 0  # of a step that verifies drafts
        self.clock = clock
        self.jobs: dict[str, Job] = {}
        self.waiting: deque[Job] = deque()  # oldest first
        self.running: list[Job] = []  # oldest first, all older than those that wait
        self.num_preemptions = 0
        self._not_admitted: tuple[Job, int] | None = None  # the last such job, and the pages available then

    def draft_with(self, find_drafts: FindDrafts, most_rows: int) -> None:
        """Has steps without prompts verify the tokens that `find_drafts` returns for each of some requests.

        Such a step has at most `most_rows` tokens.
        """
        self.find_drafts, self.most_rows = find_drafts, most_rows

    def add(self, request: Request) -> None:
        """Refuses a request that could not run even alone with an empty cache."""
        if request.request_id in self.jobs:
            raise RequestError(f"request {request.request_id}: there is one of this name already")
        check_room(request, self.tables, self.max_context)
        token_ids = list(request.token_ids)
        table = self.tables.new(token_ids, salt=request.cache_salt, is_shared=request.params.cache_prompt)
        job = Job(request, token_ids, table)
        self.jobs[request.request_id] = job
        self.waiting.append(job)

    def cancel(self, request_id: str) -> RequestStatistics | None:
        """Removes a request, even between `next` and `commit`; returns None if it no longer exists."""
        job = self.jobs.get(request_id)
        if job is None:
            return None
        self._remove(job)
        return job.statistics()

    def next(self) -> Plan:
        """Plans a step: running requests first, then waiting ones unless a request was just preempted."""
        draft = PlanDraft(self.config.max_num_batched_tokens, self.max_prompt_logits)
        before = self.num_preemptions
        for decoding in (True, False):
            for job in list(self.running):
                if job.is_running and job.is_decoding == decoding and draft.left:
                    self._extend(job, draft)
            if decoding:
                draft.prompt_tokens = self._find_room(len(draft.ends))
        if self.num_preemptions == before:
            self._admit(draft)
        drafted = self._draft(draft)
        return Plan(spans=[job.span(end, drafted.get(job, ())) for job, end in draft.ends.items()])

    def _draft(self, draft: PlanDraft) -> dict[Job, Sequence[int]]:
        """Returns drafted tokens by job, with pages, if all jobs decode. No request is preempted for them.

        The last piece of a prompt decodes if it is one token; if it is scored, its logits are those of no draft.
        """
        jobs = list(draft.ends)
        if self.find_drafts is None or any(job.is_scoring or not job.is_decoding for job in jobs):
            return {}
        drafted: dict[Job, Sequence[int]] = {}
        left = min(draft.left, self.most_rows - len(jobs))
        for job, token_ids in zip(jobs, self.find_drafts(jobs), strict=True):
            count = min(len(token_ids), left, job.most_drafted)
            count = self.reserve(job, count) if count > 0 else 0
            drafted[job] = token_ids[:count]
            left -= count
        return drafted

    def reserve(self, job: Job, count: int) -> int:
        """Takes pages for `count` tokens after those of a running job, as far as some are free and in the context.

        Returns the number of tokens that they have room for.
        """
        length = len(job.token_ids)
        return max(0, self.tables.grow(job.table, min(length + count, self.max_context)) - length)

    def _find_room(self, num_decoding: int) -> int:
        """Returns how many prompt tokens a step may take beside `num_decoding` requests."""
        left = self.config.max_num_batched_tokens - num_decoding
        return left if self.find_room is None or not num_decoding else min(left, self.find_room(num_decoding))

    def plan_ahead(self, plan: Plan) -> Plan | None:
        """Plans one more token of the requests of `plan`, which may not be committed yet. None: ask `next`.

        Requests that have left, or whose last token `plan` computes, are not in it. None is returned if none is
        left, if a request could join, or if pages are short. Pages for the tokens are taken.
        """
        spans = [(job, span) for span in plan.spans if (job := self.find(span)) is not None]
        if not spans or len(spans) < len(self.running) or self._could_admit(len(spans)):
            return None
        unfinished = [(job, span) for job, span in spans if span.end + 1 < job.longest]
        jobs = [job for job, _ in unfinished]
        following = [replace(span, start=span.end, end=span.end + 1) for _, span in unfinished]
        return Plan(spans=following) if following and self._reserve(jobs, following) else None

    def is_wanted(self, plan: Plan) -> bool:
        """Returns whether any request of `plan` still exists."""
        return any(self.find(span) is not None for span in plan.spans)

    def commit(self, plan: Plan, results: Sequence[SpanResult]) -> list[StepOutput]:
        """Applies a step's results, one per span whose logits were wanted, in order; returns the outputs."""
        now = self.clock()
        remaining = iter(results)
        outputs = []
        for span in plan.spans:
            result = next(remaining) if span.num_logits else None
            job = self.find(span)
            if job is None:
                continue  # cancelled meanwhile, or ended by an earlier token
            self._advance(job, span, span.end)
            if result is not None:
                outputs += self._finish_step(job, span, result, now)
        return outputs

    def find(self, span: Span) -> Job | None:
        """Returns the job of the span if it still exists; another job of the same name has another token list."""
        job = self.jobs.get(span.request.request_id)
        return job if job is not None and job.token_ids is span.token_ids else None

    def _reserve(self, jobs: Sequence[Job], spans: Sequence[Span]) -> bool:
        """Takes pages for all spans or for none, without preemption."""
        tables = self.tables
        needed = sum(tables.count_missing(job.table, span.end) for job, span in zip(jobs, spans, strict=True))
        if needed > tables.pool.num_available:
            return False
        for job, span in zip(jobs, spans, strict=True):
            tables.grow(job.table, span.end)
        return True

    def _extend(self, job: Job, draft: PlanDraft) -> None:
        """Plans the next tokens of a running job; preempts the youngest until there is a page for one token.

        A job whose mask is not ready sits out the step, so that the others do not wait for it.
        """
        wanted = min(len(job.token_ids), job.num_computed + draft.room(job))
        if wanted <= job.num_computed or not job.can_draw:
            return
        while (end := self.tables.grow(job.table, wanted)) <= job.num_computed:
            victim = self.running[-1]
            self._preempt(victim, draft)
            if victim is job:
                return
        draft.add(job, end)

    def _preempt(self, job: Job, draft: PlanDraft) -> None:
        draft.drop(job)
        self.running.remove(job)
        self._close(job)
        job.is_running = False
        job.preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(job)

    def _admit(self, draft: PlanDraft) -> None:
        """Admits in order of arrival, so that a large request is not overtaken forever."""
        promised = self._count_promised(draft.prompt_left)
        while self.waiting and draft.prompt_left and len(self.running) < self.config.max_num_seqs:
            job = self.waiting[0]
            if not self._open(job, draft.prompt_left, promised):
                return
            self._start(self.waiting.popleft())
            self._extend(job, draft)
            promised += self._count_missing(job, draft.prompt_left)

    def _could_admit(self, num_planned: int) -> bool:
        """Returns whether `next` would admit a waiting job to a step of `num_planned` tokens.

        Looking up a long prompt costs more than a step, so it is not retried unless more pages are available.
        """
        left = self._find_room(num_planned)
        if not self.waiting or left <= 0 or len(self.running) >= self.config.max_num_seqs:
            return False
        job, free = self.waiting[0], self.tables.pool.num_available
        if self._not_admitted is not None and self._not_admitted[0] is job and free <= self._not_admitted[1]:
            return False
        if not self._open(job, left, self._count_promised(left)):
            self._not_admitted = (job, free)
            return False
        self._close(job)
        return True

    def _open(self, job: Job, left: int, promised: int) -> bool:
        """Takes the cached pages of a job, unless the pages left after those promised to others are too few."""
        job.num_computed = self.tables.open(job.table, job.most_cached)
        if not self.running or promised + self._count_missing(job, left) <= self.tables.pool.num_available:
            return True
        self._close(job)
        return False

    def _close(self, job: Job) -> None:
        self.tables.close(job.table)
        job.num_computed = 0

    def _count_promised(self, left: int) -> int:
        return sum(self._count_missing(job, left) for job in self.running)

    def _start(self, job: Job) -> None:
        self.running.append(job)
        job.is_running = True
        if job.started is None:
            job.started = self.clock()
            job.num_cached = job.num_computed

    def _count_missing(self, job: Job, chunk: int) -> int:
        """Returns the pages still needed until all present tokens of the job are computed."""
        return self.tables.layout.count_pages(len(job.token_ids), chunk, held=job.table.num_pages)

    def _advance(self, job: Job, span: Span, end: int) -> None:
        job.num_computed = end
        job.num_scored = max(job.num_scored, min(end, job.request.num_prompt))
        self.tables.advance(job.table, end)

    def _finish_step(self, job: Job, span: Span, result: SpanResult, now: float) -> list[StepOutput]:
        """Returns an output per drawn token, up to one that ends the request."""
        samples = span.samples  # before its list of tokens grows
        outputs = [self._finish_token(job, result, samples, now)]
        for accepted, following in enumerate(result.following, 1):
            if outputs[-1].finish_reason is not None:
                return outputs
            self._advance(job, span, span.end + accepted)
            outputs.append(self._finish_token(job, following, samples, now))
        if span.draft_ids and job.is_running:
            self.tables.shrink(job.table, len(job.token_ids))
        return outputs

    def _finish_token(self, job: Job, result: SpanResult, samples: bool, now: float) -> StepOutput:
        reason, new = None, []
        if result.error is not None:
            reason = "refused" if result.is_refused else "error"
        elif samples and result.token_id is not None:
            new = [result.token_id]
            reason = job.append(result.token_id, now)
        elif job.request.score and job.num_computed == job.request.num_prompt:
            reason = "length"
        if reason == "error":
            self.tables.forget(job.table)
        if reason is not None:
            self._remove(job)
        return StepOutput(
            request_id=job.request.request_id,
            token_ids=new,
            finish_reason=reason,
            num_cached=job.num_cached,
            logprobs=result.logprobs,
            prompt_logprobs=result.prompt_logprobs,
            logits=result.logits,
            error=result.error,
            statistics=job.statistics() if reason else None,
        )

    def _remove(self, job: Job) -> None:
        del self.jobs[job.request.request_id]
        if job.is_running:
            self.running.remove(job)
            self.tables.close(job.table)
            job.is_running = False
        else:
            self.waiting.remove(job)
