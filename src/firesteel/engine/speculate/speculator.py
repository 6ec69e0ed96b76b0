"""What the engine asks of speculation: drafts for decoding requests, and a look at each step that ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from firesteel.engine.schedule.job import Job
from firesteel.engine.speculate.policy import DraftPolicy, StepTime
from firesteel.types import Plan, Span, SpanResult

FindJob = Callable[[Span], Job | None]  # returns the job of a span if it still exists


class Speculator(Protocol):
    """Drafts tokens, and learns which of them were right."""

    boundaries: tuple[int, ...]  # of the residuals that steps keep for it, see `Taps`; () for none
    policy: DraftPolicy

    def find_drafts(self, jobs: Sequence[Job]) -> list[Sequence[int]]:
        """Returns the tokens that may follow each of the decoding `jobs`, to be verified in one step."""

    def waits(self, plan: Plan) -> bool:
        """Returns whether the step after `plan` needs its tokens, so that it is not launched ahead of them."""

    def expect(self, plan: Plan) -> None:
        """Looks at the requests of a step that ran, before it is committed: some may end with it."""

    def follow(self, plan: Plan, results: Sequence[SpanResult | None], features: Tensor | None) -> None:
        """Learns from a step that was committed, and may draft.

        `results` has an item per span, None where no logits were wanted; `features` [T, F] are the kept residuals
        of its rows, None if there are no `boundaries`.
        """

    def count(self, plan: Plan, results: Sequence[SpanResult], time: StepTime) -> None:
        """Counts a decoding step and what it took, drafting included."""

    def drop(self, request_id: str) -> None:
        """Forgets a request that has ended."""


def cut_drafts(job: Job, draft_ids: Sequence[int]) -> Sequence[int]:
    """Returns the first of `draft_ids`: before one that ends the request, and as far as its grammar allows them."""
    request = job.request
    ended = next((place for place, token in enumerate(draft_ids) if token in request.stops), len(draft_ids))
    draft_ids = draft_ids[:ended]
    if request.mask is None or not draft_ids:
        return draft_ids
    return draft_ids[: request.mask.count_allowed(job.token_ids[request.num_prompt :], draft_ids)]
