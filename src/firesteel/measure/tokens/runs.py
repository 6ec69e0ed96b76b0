"""Requests of random tokens and what an engine gave each of them, checked to be complete; can open no engine."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from firesteel.errors import UserError
from firesteel.types import Request, SamplingParams, StepOutput


class RunsRequests(Protocol):
    """An engine, as far as it matters here."""

    @property
    def has_work(self) -> bool: ...

    def submit(self, request: Request) -> None: ...

    def step(self) -> list[StepOutput]: ...


def draw_requests(lengths: Iterable[int], params: SamplingParams, vocab_size: int, *, seed: int) -> list[Request]:
    """Prompts of these lengths; the same each time."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]
    return [
        Request(request_id=str(number), token_ids=prompt, params=params) for number, prompt in enumerate(prompts)
    ]


class Outputs:
    """By request, in order of the first token. `silent_steps` computed pieces of prompts and gave no token."""

    def __init__(self) -> None:
        self.tokens: defaultdict[str, list[int]] = defaultdict(list)
        self.margins: defaultdict[str, list[float]] = defaultdict(list)  # where two logprobs were asked for
        self.last: dict[str, StepOutput] = {}
        self.most_at_once = 0
        self.silent_steps = 0

    def take(self, outputs: Sequence[StepOutput]) -> None:
        """Those of one step."""
        self.most_at_once = max(self.most_at_once, len(outputs))
        self.silent_steps += not outputs
        for output in outputs:
            name = output.request_id
            self.tokens[name] += output.token_ids
            if output.logprobs is not None and len(output.logprobs.top) > 1:
                (_, best), (_, second) = output.logprobs.top[:2]
                self.margins[name].append(best - second)
            if output.finish_reason is not None:
                self.last[name] = output

    def check(self, requests: Iterable[Request]) -> None:
        """Raises unless every one has all the tokens it asked for."""
        for request in requests:
            name, wanted = request.request_id, request.params.max_tokens
            found, last = len(self.tokens[name]), self.last.get(name)
            reason = None if last is None else last.finish_reason
            if found != wanted or reason != "length":
                why = f": {last.error}" if last is not None and last.error is not None else ""
                raise UserError(
                    f"request {name} gave {found} of {wanted} tokens and ended with {reason}, not length{why}"
                )

    @property
    def preemptions(self) -> dict[str, int]:
        """By request."""
        return {name: one.statistics.preemptions for name, one in self.last.items() if one.statistics is not None}

    @property
    def cached_tokens(self) -> int:
        return sum(one.num_cached for one in self.last.values())


def run_together(engine: RunsRequests, requests: Sequence[Request], *, at: Sequence[int] | None = None) -> Outputs:
    """Request i is submitted before step at[i], else before the first."""
    made, step = Outputs(), 0
    arrivals = sorted(zip(at or [0] * len(requests), range(len(requests)), strict=True), reverse=True)
    while arrivals or engine.has_work:
        while arrivals and (arrivals[-1][0] <= step or not engine.has_work):
            engine.submit(requests[arrivals.pop()[1]])
        made.take(engine.step())
        step += 1
    made.check(requests)
    return made


def run_alone(engine: RunsRequests, requests: Sequence[Request]) -> Outputs:
    """One after the other."""
    made = Outputs()
    for request in requests:
        engine.submit(request)
        while engine.has_work:
            made.take(engine.step())
    made.check(requests)
    return made
