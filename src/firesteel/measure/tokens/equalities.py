"""Equalities of an engine: conditions that must not change the tokens of requests, each measured.

The two runs of an equality differ in one thing. If the intended condition did not occur, for example because no
request was preempted, the equality is reported as unmeasured and the next one follows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from firesteel.errors import UserError
from firesteel.measure.tokens.agreement import Agreement, LogitBits, Margins, Pair, compare_all
from firesteel.measure.tokens.logit_bits import compare_logits
from firesteel.measure.tokens.runs import Outputs, RunsRequests, draw_requests, run_alone, run_together
from firesteel.types import Request, SamplingParams

AGAIN = "again = once"
BATCHED = "batched = alone"
CHUNKED = "chunked = whole"
CACHED = "cached prefix = cold"
PREEMPTED = "preempted = undisturbed"
REORDERED = "another order = in order"
SEEDED = "same seed, batched = alone"
SCHEDULED = "random schedule = alone"
NAMES = (AGAIN, BATCHED, CHUNKED, CACHED, PREEMPTED, REORDERED, SEEDED)
PIECES = 4  # of the longest prompt in chunked prefill
MOST_STEP_TOKENS = 32_768  # in a step: rows of experts are counted in 32 bits, and steps have memory for their rows
SCARCE = (0.9, 0.7, 0.5)  # shares of the pages that all requests need in the end; one run per share


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """Settings of the engine for one run."""

    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = False
    page_share: float | None = None  # of the pages that all requests need in the end; None if pages are plentiful


OpenEngine = Callable[[EngineSetup], RunsRequests]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    equality: str
    why_not: str  # with the cure

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def draw_mixed(count: int, prompt_tokens: int, max_tokens: int, vocab_size: int, *, seed: int) -> list[Request]:
    """Draws greedy requests with prompts of `prompt_tokens` / 2 to `prompt_tokens` tokens."""
    rng = random.Random(seed)
    lengths = [rng.randint(max(2, prompt_tokens // 2), prompt_tokens) for _ in range(count)]
    return draw_requests(lengths, SamplingParams(max_tokens=max_tokens, logprobs=2), vocab_size, seed=seed)


class Equalities:
    """Measures the equalities of `requests`; `open_engine` opens an engine on the same model.

    `schedules` is a number of further runs with random settings, order and arrival.
    """

    def __init__(
        self, requests: Sequence[Request], open_engine: OpenEngine, *, seed: int, schedules: int = 0
    ) -> None:
        self.requests = requests
        self.schedules = schedules
        self.open_engine = open_engine
        self.rng = random.Random(seed)
        self.single = EngineSetup(
            max_num_seqs=1,
            max_num_batched_tokens=min(max(request.num_prompt for request in requests), MOST_STEP_TOKENS),
        )
        self.all = EngineSetup(
            max_num_seqs=len(requests),
            max_num_batched_tokens=max(
                min(sum(request.num_prompt for request in requests), MOST_STEP_TOKENS), len(requests)
            ),
        )

    def measure(self) -> Iterator[Agreement | Unmeasured]:
        """Yields the results in the order of NAMES."""
        measurements = (
            self._again,
            self._batched,
            self._chunked,
            self._cached,
            self._preempted,
            self._reordered,
            self._seeded,
        )
        for name, measurement in zip(NAMES, measurements, strict=True):
            yield _attempt(name, measurement)
        if self.schedules:
            yield _attempt(SCHEDULED, self._scheduled)

    @cached_property
    def alone(self) -> Outputs:
        return run_alone(self.open_engine(self.single), self.requests)

    @cached_property
    def batched(self) -> Outputs:
        return self._run_batched(self.requests)

    def _run_batched(self, requests: Sequence[Request]) -> Outputs:
        outputs = run_together(self.open_engine(self.all), requests)
        _insist(outputs.most_at_once > 1, "no two requests were computed at once: raise --requests or --max-tokens")
        return outputs

    def _again(self) -> Agreement:
        outputs = run_alone(self.open_engine(self.single), self.requests)
        return self._agree(AGAIN, "one at a time", self.alone, outputs)

    def _batched(self) -> Agreement:
        return self._agree(BATCHED, f"{self.batched.most_at_once} at once", self.alone, self.batched)

    def _chunked(self) -> Agreement:
        budget = -(-self.single.max_num_batched_tokens // PIECES)
        outputs = run_alone(self.open_engine(replace(self.single, max_num_batched_tokens=budget)), self.requests)
        _insist(outputs.silent_steps > 0, "no prompt was computed in pieces: raise --prompt-tokens")
        return self._agree(CHUNKED, f"pieces of {budget} tokens", self.alone, outputs)

    def _cached(self) -> Agreement:
        engine = self.open_engine(replace(self.single, prefix_caching=True))
        run_alone(engine, [_changed(request, max_tokens=1) for request in self.requests])
        outputs = run_alone(engine, self.requests)
        _insist(outputs.cached_tokens > 0, "no prompt has two tokens: raise --prompt-tokens")
        share = outputs.cached_tokens / sum(request.num_prompt for request in self.requests)
        return self._agree(CACHED, f"{100 * share:.0f} % of prompts cached", self.alone, outputs)

    def _preempted(self) -> Agreement:
        """Compares the requests that were preempted, over several runs."""
        pairs: list[Pair] = []
        count = 0
        bits: LogitBits | None = None
        for share in SCARCE:
            outputs = run_together(self.open_engine(replace(self.all, page_share=share)), self.requests)
            preempted = {name: self.batched.tokens[name] for name, times in outputs.preemptions.items() if times}
            pairs += compare_all(preempted, outputs.tokens, self.batched.margins)
            count += sum(outputs.preemptions.values())
            bits = _add_bits(bits, self.batched, outputs, {f"request {name}" for name in preempted})
        _insist(count > 0, "no request was preempted: raise --max-tokens or --requests, or lower --page-size")
        return Agreement(equality=PREEMPTED, evidence=f"{count} preemptions", pairs=tuple(pairs), logits=bits)

    def _reordered(self) -> Agreement:
        order = self.rng.sample(self.requests, len(self.requests))
        last = max(1, min(request.params.max_tokens for request in self.requests) // 2)
        at = [self.rng.randint(0, last) for _ in order]
        outputs = run_together(self.open_engine(self.all), order, at=at)
        has_changed = any(at) or list(outputs.tokens) != list(self.batched.tokens)
        _insist(has_changed, "requests came in the same order, all at once: raise --requests or --max-tokens")
        return self._agree(REORDERED, f"over {max(at) + 1} steps", self.batched, outputs)

    def _seeded(self) -> Agreement:
        seeded = [_changed(request, temperature=1.0, seed=number) for number, request in enumerate(self.requests)]
        alone = run_alone(self.open_engine(self.single), seeded)
        batched = self._run_batched(seeded)
        return self._agree(SEEDED, f"temperature 1, {batched.most_at_once} at once", alone, batched, margins={})

    def _agree(
        self, name: str, evidence: str, expected: Outputs, actual: Outputs, margins: Margins | None = None
    ) -> Agreement:
        known = expected.margins if margins is None else margins
        pairs = compare_all(expected.tokens, actual.tokens, known)
        bits = _add_bits(None, expected, actual)
        return Agreement(equality=name, evidence=evidence, pairs=tuple(pairs), logits=bits)

    def _scheduled(self) -> Agreement:
        """Compares runs with random numbers of requests and tokens per step, pages, order and arrival."""
        pairs: list[Pair] = []
        bits: LogitBits | None = None
        preemptions = cached = 0
        for _ in range(self.schedules):
            setup = EngineSetup(
                max_num_seqs=self.rng.randint(2, self.all.max_num_seqs),
                max_num_batched_tokens=self.rng.randint(
                    self.all.max_num_seqs, max(self.single.max_num_batched_tokens, 2 * self.all.max_num_seqs)
                ),
                prefix_caching=self.rng.random() < 0.5,
                page_share=self.rng.choice((None, *SCARCE)),
            )
            order = self.rng.sample(self.requests, len(self.requests))
            last = max(request.params.max_tokens for request in self.requests)
            outputs = run_together(self.open_engine(setup), order, at=[self.rng.randint(0, last) for _ in order])
            pairs += compare_all(self.alone.tokens, outputs.tokens, self.alone.margins)
            bits = _add_bits(bits, self.alone, outputs)
            preemptions += sum(outputs.preemptions.values())
            cached += outputs.cached_tokens
        evidence = f"{self.schedules} schedules, {preemptions} preemptions, {cached} tokens cached"
        return Agreement(equality=SCHEDULED, evidence=evidence, pairs=tuple(pairs), logits=bits)


def _add_bits(
    bits: LogitBits | None, expected: Outputs, actual: Outputs, names: set[str] | None = None
) -> LogitBits | None:
    """Adds the comparison of two runs, of the named requests or of all, if both kept their logits."""
    if expected.logits is None or actual.logits is None:
        return bits
    wanted = {key: row for key, row in expected.logits.items() if names is None or key[0] in names}
    more = compare_logits(wanted, actual.logits)
    return more if bits is None else bits + more


def _changed(request: Request, **params: float) -> Request:
    return replace(request, params=replace(request.params, **params))  # type: ignore[arg-type]


def _attempt(name: str, measurement: Callable[[], Agreement]) -> Agreement | Unmeasured:
    try:
        return measurement()
    except UserError as error:
        return Unmeasured(equality=name, why_not=str(error))


def _insist(has_occurred: bool, cure: str) -> None:
    if not has_occurred:
        raise UserError(cure)
