"""Requests of random tokens, and the outputs that an engine gave them, checked to be complete."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from firesteel.errors import UserError
from firesteel.measure.tokens.logit_bits import Kept, find_logits
from firesteel.types import Request, SamplingParams, StepOutput

SEED = 0  # of random weights, prompts, keys and values in benchmarks


class RunsRequests(Protocol):
    """The part of an engine that is used here."""

    @property
    def has_work(self) -> bool: ...

    def submit(self, request: Request) -> None: ...

    def step(self) -> list[StepOutput]: ...


def draw_requests(lengths: Iterable[int], params: SamplingParams, vocab_size: int, *, seed: int) -> list[Request]:
    """Draws prompts of these lengths; the same seed gives the same prompts."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]
    return [
        Request(request_id=str(number), token_ids=prompt, params=params) for number, prompt in enumerate(prompts)
    ]


class Outputs:
    """Outputs of requests, keyed by request in order of the first token.

    `silent_steps` counts steps that gave no token because they computed pieces of prompts.
    """

    def __init__(self) -> None:
        self.tokens: defaultdict[str, list[int]] = defaultdict(list)
        self.margins: defaultdict[str, list[float]] = defaultdict(list)  # if two logprobs are requested
        self.last: dict[str, StepOutput] = {}
        self.most_at_once = 0
        self.silent_steps = 0
        self.logits: Kept | None = None  # if the engine keeps them

    def take(self, outputs: Sequence[StepOutput]) -> None:
        """Adds the outputs of one step."""
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
        """Raises unless every request has all the tokens it asked for."""
        for request in requests:
            name, wanted = request.request_id, request.params.max_tokens
            count, last = len(self.tokens[name]), self.last.get(name)
            reason = None if last is None else last.finish_reason
            if count != wanted or reason != "length":
                why = f": {last.error}" if last is not None and last.error is not None else ""
                raise UserError(
                    f"request {name} gave {count} of {wanted} tokens and ended with {reason}, not length{why}"
                )

    @property
    def preemptions(self) -> dict[str, int]:
        """Number of preemptions, keyed by request."""
        return {
            name: output.statistics.preemptions
            for name, output in self.last.items()
            if output.statistics is not None
        }

    @property
    def cached_tokens(self) -> int:
        return sum(output.num_cached for output in self.last.values())


def run_together(engine: RunsRequests, requests: Sequence[Request], *, at: Sequence[int] | None = None) -> Outputs:
    """Runs requests together; request i is submitted before step at[i], or before the first step."""
    outputs, step = Outputs(), 0
    arrivals = sorted(zip(at or [0] * len(requests), range(len(requests)), strict=True), reverse=True)
    while arrivals or engine.has_work:
        while arrivals and (arrivals[-1][0] <= step or not engine.has_work):
            engine.submit(requests[arrivals.pop()[1]])
        outputs.take(engine.step())
        step += 1
    outputs.logits = find_logits(engine)
    outputs.check(requests)
    return outputs


def run_alone(engine: RunsRequests, requests: Sequence[Request]) -> Outputs:
    """Runs requests one after the other."""
    outputs = Outputs()
    for request in requests:
        engine.submit(request)
        while engine.has_work:
            outputs.take(engine.step())
    outputs.logits = find_logits(engine)
    outputs.check(requests)
    return outputs
