"""A plan while the scheduler builds it."""

from __future__ import annotations

from firesteel.engine.schedule.job import Job


class PlanDraft:
    """A plan being built: the end of each job's span, and the tokens and prompt logits left to assign."""

    def __init__(self, budget: int, prompt_logits: int) -> None:
        self.left = budget
        self.prompt_tokens = budget  # of `left`: for jobs that do not decode
        self.prompt_logits = prompt_logits
        self.ends: dict[Job, int] = {}

    @property
    def prompt_left(self) -> int:
        return min(self.left, self.prompt_tokens)

    def room(self, job: Job) -> int:
        left = self.left if job.is_decoding else self.prompt_left
        return min(left, self.prompt_logits) if job.is_scoring else left

    def add(self, job: Job, end: int) -> None:
        self.ends[job] = end
        self._give(job, end - job.num_computed)

    def drop(self, job: Job) -> None:
        if job in self.ends:
            self._give(job, job.num_computed - self.ends.pop(job))

    def _give(self, job: Job, count: int) -> None:
        self.left -= count
        if not job.is_decoding:
            self.prompt_tokens -= count
        if job.is_scoring:
            self.prompt_logits -= count
