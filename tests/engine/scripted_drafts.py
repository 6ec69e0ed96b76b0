"""Drafts of a text that is known: each token is right with a given chance. They stand in for a draft model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from torch import Tensor

from firesteel.engine.schedule.job import Job
from firesteel.engine.speculate.policy import DraftPolicy, StepTime
from firesteel.engine.speculate.speculator import cut_drafts
from firesteel.types import Plan, SpanResult


class ScriptedSpeculator:
    """Always drafts, at no cost, what requests are known to continue with."""

    boundaries: tuple[int, ...] = ()

    def __init__(
        self, policy: DraftPolicy, texts: Mapping[str, Sequence[int]], *, most: int, chance: float, seed: int = 0
    ) -> None:
        """`texts` are the new tokens by request; drafts have 0 to `most` tokens, each right with `chance`."""
        self.policy, self.texts, self.most, self.chance = policy, texts, most, chance
        self._random = random.Random(seed)

    def find_drafts(self, jobs: Sequence[Job]) -> list[Sequence[int]]:
        return [cut_drafts(job, self._draft(job)) for job in jobs]

    def _draft(self, job: Job) -> list[int]:
        text = self.texts.get(job.request.request_id, ())
        following = text[job.num_generated : job.num_generated + self.most]
        return [token if self._random.random() < self.chance else (token + 1) % 2 for token in following]

    def waits(self, plan: Plan) -> bool:
        return True

    def expect(self, plan: Plan) -> None:
        """Expects nothing."""

    def follow(self, plan: Plan, results: Sequence[SpanResult | None], features: Tensor | None) -> None:
        """Learns nothing."""

    def count(self, plan: Plan, results: Sequence[SpanResult], time: StepTime) -> None:
        if plan.has_drafts:
            self.policy.count(plan, results, time)

    def drop(self, request_id: str) -> None:
        """Keeps nothing per request."""
