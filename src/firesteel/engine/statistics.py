"""Counters of what an engine has done so far."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from firesteel.types import Plan, RequestStatistics


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Sums since the start; a comment says "now" for current values. Seconds are sums over finished requests."""

    requests_running: int = 0  # now
    requests_waiting: int = 0  # now
    requests_finished: int = 0
    requests_cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_s: float = 0.0
    first_token_s: float = 0.0
    token_s: float = 0.0  # each request's mean time per token, summed
    preemptions: int = 0
    pages: int = 0  # of the pool
    pages_held: int = 0  # now, by requests
    pages_idle: int = 0  # now, with content that later prompts may reuse
    page_evictions: int = 0
    cache_bytes: int = 0
    saturated_values: int = 0  # keys and values clipped to the range of FP8
    graphs: int = 0  # now: decoding steps made, captured on a GPU
    graph_s: float = 0.0  # time spent making them
    graph_bytes: int = 0  # GPU memory that torch has held for them since
    prompt_graphs: int = 0  # now: prompt steps made, captured on a GPU
    prompt_graph_s: float = 0.0
    prompt_graph_bytes: int = 0
    prompt_steps_replayed: int = 0  # steps with prompts that ran in one of those
    prompt_steps_too_many_tokens: int = 0  # ran op by op, with the reason, as the next two
    prompt_steps_with_prompt_logits: int = 0
    prompt_steps_without_graphs: int = 0
    prompt_tokens_beside_decoding: int = 0  # now: limit per step beside a decoding request; 0 = no limit
    experts_in_fp8: int = 0  # now: computed by FP8 kernels in steps with prompts; 0 without such kernels
    experts_in_bf16: int = 0  # now: left to bf16 kernels there, because E4M3 cannot represent a row
    late_compilations: int = 0  # kernels compiled or loaded while requests were served
    late_captures: int = 0  # steps made while requests were served
    drafts: int = 0  # times that drafts of a request were verified
    draft_tokens: int = 0  # drafted and verified, as in the next
    accepted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)  # drafts accepted at least up to each position
    draft_s: float = 0.0  # spent on drafting: launches, and waiting for the tokens, which schedule_s contains
    draft_graphs: int = 0  # now: drafting steps of a network made, captured on a GPU
    draft_graph_s: float = 0.0
    draft_graph_bytes: int = 0
    draft_steps_replayed: int = 0  # times that a network ran in one of those
    draft_steps_of_prompts: int = 0  # times that it stored many rows op by op
    draft_steps_without_graphs: int = 0  # times that it did everything op by op
    draft_saved_s: float = (
        0.0  # estimate: time that the same tokens would have taken without drafts, less what they took
    )
    steps: int = 0
    step_tokens: int = 0
    step_requests: int = 0
    largest_step_tokens: int = 0
    largest_step_requests: int = 0
    schedule_s: float = 0.0
    build_s: float = 0.0
    run_s: float = 0.0  # the model: its launches on a GPU, its whole computation on a CPU
    wait_s: float = 0.0  # sampling and waiting for the device

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time of its body to the field `stage`_s."""
        start = time.perf_counter()
        try:
            yield
        finally:
            name = f"{stage}_s"
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)

    def count_step(self, plan: Plan) -> None:
        self.steps += 1
        self.step_tokens += plan.num_tokens
        self.step_requests += len(plan.spans)
        self.largest_step_tokens = max(self.largest_step_tokens, plan.num_tokens)
        self.largest_step_requests = max(self.largest_step_requests, len(plan.spans))

    def prompt_steps(self) -> dict[str, int]:
        """Returns the number of steps with prompts that were replayed, and that ran op by op, by reason."""
        return {
            "replayed": self.prompt_steps_replayed,
            "too many tokens": self.prompt_steps_too_many_tokens,
            "prompt logits": self.prompt_steps_with_prompt_logits,
            "no graphs": self.prompt_steps_without_graphs,
        }

    def draft_steps(self) -> dict[str, int]:
        """Returns how often a draft network was replayed, and ran op by op, by reason."""
        return {
            "replayed": self.draft_steps_replayed,
            "prompts": self.draft_steps_of_prompts,
            "no graphs": self.draft_steps_without_graphs,
        }

    def count_finished(self, request: RequestStatistics) -> None:
        self.requests_finished += 1
        for name in ("prompt_tokens", "cached_tokens", "output_tokens", "queue_s", "first_token_s", "token_s"):
            setattr(self, name, getattr(self, name) + getattr(request, name))

    def as_dict(self) -> dict[str, int | float | list[int]]:
        return {declared.name: getattr(self, declared.name) for declared in fields(self)}
