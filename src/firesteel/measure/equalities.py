"""The ways of running requests that must not change their tokens, each measured; knows how to open no engine.

Each differs from what it is compared with in one thing. A way that did not come about, as a preemption that never
happened, is an error: nothing would have been measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from firesteel.errors import UserError
from firesteel.measure.agreement import Agreement, Margins, Pair, compare_all
from firesteel.measure.runs import Outputs, RunsRequests, draw_requests, run_alone, run_together
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
class Way:
    """What of an engine is set for a run."""

    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = False
    page_share: float | None = None  # of the pages that all requests need in the end; None: plenty


Open = Callable[[Way], RunsRequests]


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
        self.one = Way(max_num_seqs=1, max_num_batched_tokens=max(one.num_prompt for one in requests))
        self.all = Way(max_num_seqs=len(requests), max_num_batched_tokens=sum(one.num_prompt for one in requests))

    def measure(self) -> Iterator[Agreement]:
        """In the order of NAMES."""
        alone = run_alone(self.open_engine(self.one), self.requests)
        yield self._agree(AGAIN, "one at a time", alone, run_alone(self.open_engine(self.one), self.requests))
        batched = run_together(self.open_engine(self.all), self.requests)
        yield self._agree(BATCHED, f"{batched.most_at_once} at once", alone, batched)
        yield self._chunked(alone)
        yield self._cached(alone)
        yield self._preempted(batched)
        yield self._reordered(batched)
        yield self._seeded()

    def _chunked(self, alone: Outputs) -> Agreement:
        budget = -(-self.one.max_num_batched_tokens // PIECES)
        made = run_alone(self.open_engine(replace(self.one, max_num_batched_tokens=budget)), self.requests)
        _insist(made.silent_steps, CHUNKED, "no prompt was computed in pieces: raise --prompt-tokens")
        return self._agree(CHUNKED, f"pieces of {budget} tokens", alone, made)

    def _cached(self, alone: Outputs) -> Agreement:
        engine = self.open_engine(replace(self.one, prefix_caching=True))
        run_alone(engine, [_changed(one, max_tokens=1) for one in self.requests])
        made = run_alone(engine, self.requests)
        _insist(made.cached_tokens, CACHED, "no prompt fills a page: raise --prompt-tokens or lower --page-size")
        share = made.cached_tokens / sum(one.num_prompt for one in self.requests)
        return self._agree(CACHED, f"{100 * share:.0f} % of prompts cached", alone, made)

    def _preempted(self, batched: Outputs) -> Agreement:
        """Over the requests that gave way, in several runs."""
        pairs: list[Pair] = []
        count = 0
        for share in SCARCE:
            made = run_together(self.open_engine(replace(self.all, page_share=share)), self.requests)
            gave_way = {name: batched.tokens[name] for name, times in made.preemptions.items() if times}
            pairs += compare_all(gave_way, made.tokens, batched.margins)
            count += sum(made.preemptions.values())
        cure = "no request had to give way: raise --max-tokens or --requests, or lower --page-size"
        _insist(count, PREEMPTED, cure)
        return Agreement(equality=PREEMPTED, evidence=f"{count} preemptions", pairs=tuple(pairs))

    def _reordered(self, batched: Outputs) -> Agreement:
        order = self.rng.sample(self.requests, len(self.requests))
        last = max(1, min(one.params.max_tokens for one in self.requests) // 2)
        at = [self.rng.randint(0, last) for _ in order]
        made = run_together(self.open_engine(self.all), order, at=at)
        return self._agree(REORDERED, f"over {max(at) + 1} steps", batched, made)

    def _seeded(self) -> Agreement:
        drawn = [_changed(one, temperature=1.0, seed=number) for number, one in enumerate(self.requests)]
        alone = run_alone(self.open_engine(self.one), drawn)
        batched = run_together(self.open_engine(self.all), drawn)
        return self._agree(SEEDED, f"temperature 1, {batched.most_at_once} at once", alone, batched, margins={})

    def _agree(
        self, name: str, evidence: str, expected: Outputs, actual: Outputs, margins: Margins | None = None
    ) -> Agreement:
        known = expected.margins if margins is None else margins
        pairs = compare_all(expected.tokens, actual.tokens, known)
        return Agreement(equality=name, evidence=evidence, pairs=tuple(pairs))


def _changed(request: Request, **params: float) -> Request:
    return replace(request, params=replace(request.params, **params))  # type: ignore[arg-type]


def _insist(count: int, name: str, cure: str) -> None:
    if not count:
        raise UserError(f"{name} cannot be measured: {cure}")
