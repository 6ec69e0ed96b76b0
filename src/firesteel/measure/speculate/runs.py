"""Tokens per second of the whole engine with simulated drafts, beside those without any."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from firesteel.config import Config
from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.engine.speculate.copying import CopyingSpeculator
from firesteel.errors import UserError
from firesteel.heap import settled_heap
from firesteel.measure.record import Record
from firesteel.measure.speculate.simulated import SimulatedSpeculator, follow, use_speculator
from firesteel.measure.tokens.runs import SEED, Outputs, draw_requests, run_together
from firesteel.types import Request, SamplingParams

ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSweep:
    """Requests, depths and acceptances to measure, each with each; every case also without drafts."""

    requests: tuple[int, ...]
    contexts: tuple[int, ...]
    acceptances: tuple[float, ...]
    most_drafted: int  # per request and step
    tokens: int  # generated per request

    def cases(self) -> list[tuple[int, int, float | None]]:
        return [
            (requests, context, acceptance)
            for requests in self.requests
            for context in self.contexts
            for acceptance in (None, *self.acceptances)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSpeed:
    """Speed at an acceptance; None: nothing was drafted."""

    requests: int
    context: int  # tokens per request at first
    acceptance: float | None
    samples_tok_s: tuple[float, ...]  # of all requests, while all of them decode; one per round
    drafts: int  # times that drafts of a request were verified
    drafted: int
    accepted: int
    saved_s: float  # the engine's own estimate
    request_steps: int  # steps of requests, with drafts or without
    policy: dict[str, Any] | None  # what the last choices were made from, see `DraftPolicy.describe`

    @property
    def tok_s(self) -> float:
        return statistics.median(self.samples_tok_s)

    @property
    def length(self) -> float:
        """Tokens per step and request, whether it drafted or not."""
        return 1 + self.accepted / self.request_steps

    def as_dict(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "context": self.context,
            "acceptance": self.acceptance,
            "tok_s": self.tok_s,
            "drafts": self.drafts,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tokens_a_step": self.length,
            "saved_s": self.saved_s,
            "policy": self.policy,
        }


def check_room(sweep: SimulatedSweep, loaded: Loaded) -> None:
    """Raises unless context and cache have room for the largest case."""
    longest = max(sweep.contexts) + sweep.tokens
    if longest > loaded.max_context:
        raise UserError(
            f"{longest} tokens per request exceed the context of {loaded.max_context}: lower --context or --steps"
        )
    engine = loaded.engine
    needed = max(sweep.requests) * engine.scheduler.tables.layout.count_pages(longest)
    if needed > engine.totals.pages:
        raise UserError(
            f"{max(sweep.requests)} x {longest} tokens need {needed} pages, the cache has {engine.totals.pages}: "
            "raise --kv-cache-gib, or lower --requests, --context or --steps"
        )


def measure_simulated(
    sweep: SimulatedSweep, loaded: Loaded, *, progress: Callable[[int, int], None]
) -> Iterator[SimulatedSpeed]:
    """Measures all cases on an engine that drafts by copying, with weights of `plant_order`."""
    engine, cases = loaded.engine, sweep.cases()
    copying = engine.speculator
    if not isinstance(copying, CopyingSpeculator):
        raise UserError("simulated drafts take the place of copied ones: open the engine with speculate=ngram")
    for done, (count, context, acceptance) in enumerate(cases, start=1):
        speculator = None
        if acceptance is not None:
            speculator = SimulatedSpeculator(
                copying.policy,
                copying.find_job,
                most=sweep.most_drafted,
                acceptance=acceptance,
                vocab_size=loaded.spec.vocab_size,
            )
            copying.policy.forget()  # learnt at another acceptance
        use_speculator(engine, speculator)
        params = SamplingParams(max_tokens=sweep.tokens)
        requests = draw_requests([context] * count, params, loaded.spec.vocab_size, seed=SEED)
        yield measure_case(engine, requests, context, acceptance)
        progress(done, len(cases))
    use_speculator(engine, copying)


def measure_case(
    engine: Engine, requests: Sequence[Request], context: int, acceptance: float | None
) -> SimulatedSpeed:
    """Runs the requests once untimed, then `ROUNDS` times."""
    check_text(run_together(engine, requests), requests, engine.sampler.vocab_size)
    before = engine.statistics()
    with settled_heap():
        rounds = [time_round(engine, requests) for _ in range(ROUNDS)]
    now = engine.statistics()

    def since(name: str) -> float:
        return float(getattr(now, name) - getattr(before, name))

    accepted = int(since("accepted_tokens"))
    drawn = ROUNDS * sum(request.max_new for request in requests)
    return SimulatedSpeed(
        requests=len(requests),
        context=context,
        acceptance=acceptance,
        samples_tok_s=tuple(rounds),
        drafts=int(since("drafts")),
        drafted=int(since("draft_tokens")),
        accepted=accepted,
        saved_s=since("draft_saved_s"),
        request_steps=drawn - accepted,
        policy=None if engine.speculator is None else engine.speculator.policy.describe(len(requests)),
    )


def check_text(outputs: Outputs, requests: Sequence[Request], vocab_size: int) -> None:
    """Raises unless every text goes on as the drafts expect."""
    for request in requests:
        expected = follow(request.token_ids[-1], request.max_new, vocab_size)
        if outputs.tokens[request.request_id] != expected:
            raise UserError(
                f"request {request.request_id} did not count upwards from its last token, so no draft has the "
                "stated acceptance; please report this with the command"
            )


def time_round(engine: Engine, requests: Sequence[Request]) -> float:
    """Returns tokens per second from the moment when all requests decode to the end of the first of them."""
    for request in requests:
        engine.submit(replace(request, arrival=time.monotonic()))
    begun: set[str] = set()
    while len(begun) < len(requests):
        begun |= {output.request_id for output in engine.step()}
    count, start = 0, time.perf_counter()
    seconds = 0.0
    while len(engine.scheduler.running) == len(requests):
        count += sum(len(output.token_ids) for output in engine.step())
        seconds = time.perf_counter() - start
    while engine.has_work:
        engine.step()
    if not count:
        raise UserError("a request ended before all of them decoded: raise --steps")
    return count / seconds


def record(loaded: Loaded, config: Config, name: str, sweep: SimulatedSweep, speed: SimulatedSpeed) -> Record:
    """Builds the record; its samples are tokens per second of all requests, one per round."""
    drafts = "no drafts" if speed.acceptance is None else f"drafts accepted by {speed.acceptance:g}"
    return Record.now(
        loaded.device,
        config,
        name=f"{drafts}, {speed.requests} requests at {speed.context}",
        unit="tok/s",
        samples=speed.samples_tok_s,
        warmups=1,
        seed=SEED,
        kernels=loaded.table(),
        startup_s=loaded.report.seconds,
        parameters={
            "model": name,
            **speed.as_dict(),
            "most_drafted": sweep.most_drafted,
            "tokens": sweep.tokens,
            "pages": loaded.engine.totals.pages,
        },
    )
