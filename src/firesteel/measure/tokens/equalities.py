"""The ways of running requests that must not change their tokens, each measured; knows how to open no engine.

Each differs from what it is compared with in one thing. A way that did not come about, as a preemption that never
happened, is said to be unmeasured, and the next is tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from firesteel.errors import UserError
from firesteel.measure.tokens.agreement import Agreement, Margins, Pair, compare_all
from firesteel.measure.tokens.runs import Outputs, RunsRequests, draw_requests, run_alone, run_together
from firesteel.types import Request, SamplingParams

AGAIN = "again = once"
BATCHED = "batched = alone"
CHUNKED = "chunked = whole"
CACHED = "cached prefix = cold"
PREEMPTED = "preempted = undisturbed"
REORDERED = "another order = in order"
SEEDED = "same seed, batched = alone"
NAMES = (AGAIN, BATCHED, CHUNKED, CACHED, PREEMPTED, REORDERED, SEEDED)
PIECES = 4  # of the longest prompt, where it is computed in pieces
SCARCE = (0.9, 0.7, 0.5)  # shares of the pages that all need in the end: one run with each


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What of an engine is set for a run."""

    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = False
    page_share: float | None = None  # of the pages that all requests need in the end; None: plenty


Open = Callable[[EngineSetup], RunsRequests]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    equality: str
    why_not: str  # with the cure

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def draw_mixed(count: int, prompt_tokens: int, max_tokens: int, vocab_size: int, *, seed: int) -> list[Request]:
    """Greedy ones; prompts have from half of `prompt_tokens` to all of them."""
    rng = random.Random(seed)
    lengths = [rng.randint(max(2, prompt_tokens // 2), prompt_tokens) for _ in range(count)]
    return draw_requests(lengths, SamplingParams(max_tokens=max_tokens, logprobs=2), vocab_size, seed=seed)


class Equalities:
    """`open_engine` makes an engine on the same model, set as the way says."""

    def __init__(self, requests: Sequence[Request], open_engine: Open, *, seed: int) -> None:
        self.requests = requests
        self.open_engine = open_engine
        self.rng = random.Random(seed)
        self.one = EngineSetup(max_num_seqs=1, max_num_batched_tokens=max(one.num_prompt for one in requests))
        self.all = EngineSetup(
            max_num_seqs=len(requests), max_num_batched_tokens=sum(one.num_prompt for one in requests)
        )

    def measure(self) -> Iterator[Agreement | Unmeasured]:
        """In the order of NAMES."""
        ways = (
            self._again, self._batched, self._chunked, self._cached, self._preempted, self._reordered, self._seeded,
        )  # fmt: skip
        for name, way in zip(NAMES, ways, strict=True):
            yield _attempt(name, way)

    @cached_property
    def alone(self) -> Outputs:
        return run_alone(self.open_engine(self.one), self.requests)

    @cached_property
    def batched(self) -> Outputs:
        return self._run_batched(self.requests)

    def _run_batched(self, requests: Sequence[Request]) -> Outputs:
        made = run_together(self.open_engine(self.all), requests)
        _insist(made.most_at_once > 1, "no two requests were computed at once: raise --requests or --max-tokens")
        return made

    def _again(self) -> Agreement:
        made = run_alone(self.open_engine(self.one), self.requests)
        return self._agree(AGAIN, "one at a time", self.alone, made)

    def _batched(self) -> Agreement:
        return self._agree(BATCHED, f"{self.batched.most_at_once} at once", self.alone, self.batched)

    def _chunked(self) -> Agreement:
        budget = -(-self.one.max_num_batched_tokens // PIECES)
        made = run_alone(self.open_engine(replace(self.one, max_num_batched_tokens=budget)), self.requests)
        _insist(made.silent_steps > 0, "no prompt was computed in pieces: raise --prompt-tokens")
        return self._agree(CHUNKED, f"pieces of {budget} tokens", self.alone, made)

    def _cached(self) -> Agreement:
        engine = self.open_engine(replace(self.one, prefix_caching=True))
        run_alone(engine, [_changed(one, max_tokens=1) for one in self.requests])
        made = run_alone(engine, self.requests)
        _insist(made.cached_tokens > 0, "no prompt fills a page: raise --prompt-tokens or lower --page-size")
        share = made.cached_tokens / sum(one.num_prompt for one in self.requests)
        return self._agree(CACHED, f"{100 * share:.0f} % of prompts cached", self.alone, made)

    def _preempted(self) -> Agreement:
        """Over the requests that gave way, in several runs."""
        pairs: list[Pair] = []
        count = 0
        for share in SCARCE:
            made = run_together(self.open_engine(replace(self.all, page_share=share)), self.requests)
            gave_way = {name: self.batched.tokens[name] for name, times in made.preemptions.items() if times}
            pairs += compare_all(gave_way, made.tokens, self.batched.margins)
            count += sum(made.preemptions.values())
        _insist(count > 0, "no request had to give way: raise --max-tokens or --requests, or lower --page-size")
        return Agreement(equality=PREEMPTED, evidence=f"{count} preemptions", pairs=tuple(pairs))

    def _reordered(self) -> Agreement:
        order = self.rng.sample(self.requests, len(self.requests))
        last = max(1, min(one.params.max_tokens for one in self.requests) // 2)
        at = [self.rng.randint(0, last) for _ in order]
        made = run_together(self.open_engine(self.all), order, at=at)
        has_changed = any(at) or list(made.tokens) != list(self.batched.tokens)
        _insist(has_changed, "requests came in the same order, all at once: raise --requests or --max-tokens")
        return self._agree(REORDERED, f"over {max(at) + 1} steps", self.batched, made)

    def _seeded(self) -> Agreement:
        drawn = [_changed(one, temperature=1.0, seed=number) for number, one in enumerate(self.requests)]
        alone = run_alone(self.open_engine(self.one), drawn)
        batched = self._run_batched(drawn)
        return self._agree(SEEDED, f"temperature 1, {batched.most_at_once} at once", alone, batched, margins={})

    def _agree(
        self, name: str, evidence: str, expected: Outputs, actual: Outputs, margins: Margins | None = None
    ) -> Agreement:
        known = expected.margins if margins is None else margins
        pairs = compare_all(expected.tokens, actual.tokens, known)
        return Agreement(equality=name, evidence=evidence, pairs=tuple(pairs))


def _changed(request: Request, **params: float) -> Request:
    return replace(request, params=replace(request.params, **params))  # type: ignore[arg-type]


def _attempt(name: str, way: Callable[[], Agreement]) -> Agreement | Unmeasured:
    try:
        return way()
    except UserError as error:
        return Unmeasured(equality=name, why_not=str(error))


def _insist(came_about: bool, cure: str) -> None:
    if not came_about:
        raise UserError(cure)
