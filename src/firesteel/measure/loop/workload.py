"""Mixed workloads through an engine: chat turns behind a cached prefix, a closed loop and Poisson arrivals.

Every output runs to its full length, with the most likely token at each step. Times count from before a request is
submitted, or from when it was due.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firesteel.config import Config
from firesteel.engine.load import Loaded
from firesteel.errors import UserError
from firesteel.measure.loop.mixed_requests import (
    LEAST_SCALED_PROMPT,
    MOST_TOKENS,
    TURN_OUTPUT,
    MixedRequests,
    WorkloadRequest,
    digest_requests,
)
from firesteel.measure.record import Record
from firesteel.measure.tokens.runs import SEED, RunsRequests
from firesteel.types import Request, SamplingParams

TURNS, WARM_TURNS = 6, 2
WARM_CLOSED = ((1, 2, 99), (4, 8, 98))  # in flight, requests and seed, before everything else
TURN_SEEDS = (7, 8)  # of the warm-up and of the measured run
WARM_CLOSED_SEED, CLOSED_SEED = 50, 100  # plus the requests in flight
WARM_OPEN_SEED, OPEN_SEED = 200, 300  # plus the rate
IDLE_S = 0.001  # between looks at the clock while nothing is in flight


@dataclass(slots=True)
class Timeline:
    """Times at which a request was sent and each of its tokens came, in seconds."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    is_done: bool = False

    @property
    def ms_a_token(self) -> float:
        """Time per token between the first and the last output."""
        return 1e3 * (self.token_s[-1] - self.token_s[0]) / (len(self.token_ids) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFigures:
    """The figures of one workload. Gaps are between two outputs of one request."""

    kind: str  # "turns", "closed" or "open"
    parameters: Mapping[str, float]
    num_requests: int
    request_digest: str  # equal for equal requests; those of chat turns contain the engine's answers
    prompt_tokens: int
    output_tokens: int
    seconds: float
    first_token_ms: tuple[float, ...]
    gaps_ms: tuple[float, ...]
    token_ms: tuple[float, ...]  # per request, the mean time per token after its first output

    @property
    def output_tok_s(self) -> float:
        return self.output_tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Returns everything but the samples."""
        return {
            "kind": self.kind,
            **self.parameters,
            "requests": self.num_requests,
            "request_digest": self.request_digest,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "seconds": self.seconds,
            "output_tok_s": self.output_tok_s,
            "first_token_ms": summarise(self.first_token_ms),
            "gap_ms": summarise(self.gaps_ms),
            "ms_a_token": summarise(self.token_ms),
        }


def summarise(samples: Sequence[float]) -> dict[str, float] | None:
    """Returns quantiles, each one of the samples, and the maximum; None where there are no samples."""
    if not samples:
        return None
    ordered = sorted(samples)
    quantiles = {
        f"p{percent}": ordered[min(len(ordered) - 1, percent * len(ordered) // 100)] for percent in (50, 90, 99)
    }
    return {**quantiles, "max": ordered[-1]}


class WorkloadMeter:
    """Sends jobs to an engine and keeps the time of each token."""

    def __init__(self, engine: RunsRequests, clock: Callable[[], float] = time.perf_counter) -> None:
        self.engine = engine
        self.clock = clock
        self.timelines: dict[str, Timeline] = {}
        self.num_done = 0

    @property
    def num_in_flight(self) -> int:
        return len(self.timelines) - self.num_done

    def send(self, job: WorkloadRequest, sent_s: float | None = None) -> None:
        """Submits `job`; its time to the first token counts from `sent_s`, or from now."""
        params = SamplingParams(max_tokens=job.num_output)
        self.timelines[job.name] = Timeline(self.clock() if sent_s is None else sent_s)
        self.engine.submit(Request(request_id=job.name, token_ids=list(job.token_ids), params=params))

    def step(self) -> None:
        outputs = self.engine.step()
        now = self.clock()
        for output in outputs:
            timeline = self.timelines[output.request_id]
            timeline.token_ids += output.token_ids
            timeline.token_s += [now] * bool(output.token_ids)
            if output.finish_reason is not None:
                if output.finish_reason != "length":
                    raise UserError(
                        f"request {output.request_id} ended with {output.finish_reason!r} before its full length"
                    )
                timeline.is_done = True
                self.num_done += 1

    def figures(
        self, kind: str, parameters: Mapping[str, float], jobs: Sequence[WorkloadRequest], seconds: float
    ) -> WorkloadFigures:
        timelines = [self.timelines[job.name] for job in jobs]
        first = [1e3 * (timeline.token_s[0] - timeline.sent_s) for timeline in timelines]
        gaps = [
            1e3 * (later - earlier)
            for timeline in timelines
            for earlier, later in zip(timeline.token_s, timeline.token_s[1:], strict=False)
        ]
        return WorkloadFigures(
            kind=kind,
            parameters=parameters,
            num_requests=len(jobs),
            request_digest=digest_requests(jobs),
            prompt_tokens=sum(len(job.token_ids) for job in jobs),
            output_tokens=sum(len(timeline.token_ids) for timeline in timelines),
            seconds=seconds,
            first_token_ms=tuple(first),
            gaps_ms=tuple(gaps),
            token_ms=tuple(timeline.ms_a_token for timeline in timelines if len(timeline.token_ids) > 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSweep:
    """The workloads to run; an empty tuple leaves a kind out."""

    contexts: tuple[int, ...]  # cached tokens before the chat turns
    new: tuple[int, ...]  # tokens per chat turn
    in_flight: tuple[int, ...]
    rates: tuple[int, ...]  # requests per second
    open_s: float

    def __len__(self) -> int:
        return len(self.contexts) * len(self.new) + len(self.in_flight) + len(self.rates)

    def most_tokens(self) -> int:
        """Returns the tokens of the longest request."""
        turns = max(self.contexts, default=0) + (TURNS + 1) * (max(self.new, default=0) + TURN_OUTPUT)
        return max(turns, MOST_TOKENS)  # the warm-up is a closed loop in any case

    def run(self, engine: RunsRequests, workload: Workload) -> Iterator[WorkloadFigures]:
        """Runs each workload twice with different requests, and yields the figures of the second run."""
        for in_flight, num_requests, seed in WARM_CLOSED:
            workload.run_closed(engine, in_flight, num_requests, seed)
        warm, measured = TURN_SEEDS
        for context, new in itertools.product(self.contexts, self.new):
            workload.run_turns(engine, context, new, WARM_TURNS, warm)
            yield workload.run_turns(engine, context, new, TURNS, measured)
        for in_flight in self.in_flight:
            workload.run_closed(engine, in_flight, max(4, in_flight), WARM_CLOSED_SEED + in_flight)
            yield workload.run_closed(engine, in_flight, max(8, 3 * in_flight), CLOSED_SEED + in_flight)
        for rate in self.rates:
            if warm_up := workload.requests.draw_open(rate, self.open_s / 3, WARM_OPEN_SEED + rate):
                workload.run_arrivals(engine, rate, warm_up)
            yield workload.run_open(engine, rate, self.open_s, OPEN_SEED + rate)


def record(loaded: Loaded, config: Config, figures: WorkloadFigures, name: str) -> Record:
    """Builds the record; its samples are milliseconds to the first token, one per request."""
    totals = loaded.engine.statistics()
    late = {"late_compilations": totals.late_compilations, "late_captures": totals.late_captures}
    described = " ".join(f"{key}={value:g}" for key, value in figures.parameters.items())
    return Record.now(
        loaded.device,
        config,
        name=f"workload {figures.kind} {described}",
        unit="ms",
        samples=figures.first_token_ms,
        warmups=1,
        seed=SEED,
        kernels=loaded.kernels.table(),
        startup_s=loaded.report.seconds,
        parameters={"model": name, **figures.as_dict(), **late},
    )


@dataclass(frozen=True, slots=True)
class Workload:
    """Sends requests to an engine, of one kind of workload at a time."""

    requests: MixedRequests

    def run_closed(self, engine: RunsRequests, in_flight: int, num_requests: int, seed: int) -> WorkloadFigures:
        """Keeps `in_flight` requests in flight until `num_requests` are done."""
        jobs, meter = self.requests.draw_closed(in_flight, num_requests, seed), WorkloadMeter(engine)
        pending, start = iter(jobs), meter.clock()
        while meter.num_done < num_requests:
            while meter.num_in_flight < in_flight and (job := next(pending, None)) is not None:
                meter.send(job)
            meter.step()
        return meter.figures("closed", {"in_flight": in_flight}, jobs, meter.clock() - start)

    def run_open(self, engine: RunsRequests, rate: int, seconds: float, seed: int) -> WorkloadFigures:
        """Sends requests at random times for `seconds`, `rate` per second on average, and waits for all of them."""
        jobs = self.requests.draw_open(rate, seconds, seed)
        if not jobs:
            raise UserError(f"no request arrives within {seconds} s at {rate} per second: raise one of them")
        return self.run_arrivals(engine, rate, jobs)

    def run_arrivals(self, engine: RunsRequests, rate: int, jobs: Sequence[WorkloadRequest]) -> WorkloadFigures:
        """Sends each request when it is due."""
        meter = WorkloadMeter(engine)
        start, num_sent = meter.clock(), 0
        while meter.num_done < len(jobs):
            now = meter.clock() - start
            while num_sent < len(jobs) and jobs[num_sent].arrival_s <= now:
                meter.send(jobs[num_sent], start + jobs[num_sent].arrival_s)
                num_sent += 1
            if meter.num_in_flight:
                meter.step()
            else:
                time.sleep(max(0.0, min(IDLE_S, jobs[num_sent].arrival_s - now)))
        return meter.figures("open", {"rate": rate}, jobs, meter.clock() - start)

    def run_turns(self, engine: RunsRequests, context: int, new: int, num_turns: int, seed: int) -> WorkloadFigures:
        """Runs one chat: a context, then turns of `new` tokens, each behind all tokens before it.

        The first request fills the prefix cache and does not count. Chats of one seed begin alike, so part of it
        may be cached already.
        """
        drawn, rng, meter = self.requests, random.Random(seed), WorkloadMeter(engine)
        token_ids = drawn.draw_ids(rng, drawn.scaled(context))
        num_output = drawn.scaled(TURN_OUTPUT, LEAST_SCALED_PROMPT)
        jobs, start = [], meter.clock()
        for turn in range(num_turns + 1):
            name = f"turns-{context}-{new}-{seed}-{turn}"
            job = WorkloadRequest(name=name, token_ids=token_ids, num_output=num_output)
            start = meter.clock() if turn == 1 else start
            meter.send(job)
            while meter.num_in_flight:
                meter.step()
            jobs += [job] * bool(turn)
            token_ids = token_ids + meter.timelines[name].token_ids + drawn.draw_ids(rng, drawn.scaled(new))
        parameters = {"context": drawn.scaled(context), "new": drawn.scaled(new)}
        return meter.figures("turns", parameters, jobs, meter.clock() - start)
