"""Mixed workloads through an engine: chat turns behind a cached prefix, a closed loop and Poisson arrivals.

Prompts and outputs have log-normal lengths as chats and agents send them (prompt median 545 tokens, output median
122). The same seed gives the same requests, so that engines can be compared on them. Every output runs to its
full length, with the most likely token at each step.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firesteel.config import Config
from firesteel.engine.load import Loaded
from firesteel.errors import UserError
from firesteel.measure.record import Record
from firesteel.measure.tokens.runs import SEED, RunsRequests
from firesteel.types import Request, SamplingParams

LEAST_PROMPT, MOST_PROMPT = 20, 6000
LEAST_OUTPUT, MOST_OUTPUT = 16, 400
PROMPT_LOG_MEAN, PROMPT_LOG_DEVIATION = 6.3, 1.0
OUTPUT_LOG_MEAN, OUTPUT_LOG_DEVIATION = 4.8, 0.6
TURN_OUTPUT = 24  # tokens of an answer between two turns
MOST_TOKENS = MOST_PROMPT + MOST_OUTPUT  # of a request of the closed and open loops
TURNS, WARM_TURNS = 6, 2
IDLE_S = 0.001  # between looks at the clock while nothing is in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """A request of a workload; `arrival_s` counts from the start and is 0 in a closed loop."""

    name: str
    token_ids: Sequence[int]
    num_output: int
    arrival_s: float = 0.0


@dataclass(slots=True)
class Timeline:
    """Times at which a request was sent and each of its tokens came, in seconds."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFigures:
    """The figures of one workload. Gaps are between two outputs of one request."""

    kind: str  # "turns", "closed" or "open"
    parameters: Mapping[str, float]
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    first_token_ms: tuple[float, ...]
    gaps_ms: tuple[float, ...]

    @property
    def output_tok_s(self) -> float:
        return self.output_tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Returns everything but the samples."""
        return {
            "kind": self.kind,
            **self.parameters,
            "requests": self.num_requests,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "seconds": self.seconds,
            "output_tok_s": self.output_tok_s,
            "first_token_ms": summarise(self.first_token_ms),
            "gap_ms": summarise(self.gaps_ms),
        }


def summarise(samples: Sequence[float]) -> dict[str, float] | None:
    """Returns median, p99 and maximum, or None where there are no samples."""
    if not samples:
        return None
    ordered = sorted(samples)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}


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
            prompt_tokens=sum(len(job.token_ids) for job in jobs),
            output_tokens=sum(len(timeline.token_ids) for timeline in timelines),
            seconds=seconds,
            first_token_ms=tuple(first),
            gaps_ms=tuple(gaps),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSweep:
    """The workloads to run; an empty tuple leaves a kind out."""

    contexts: tuple[int, ...]  # cached tokens before the chat turns
    new: tuple[int, ...]  # tokens per chat turn
    in_flight: tuple[int, ...]
    rates: tuple[float, ...]  # requests per second
    open_s: float

    def __len__(self) -> int:
        return len(self.contexts) * len(self.new) + len(self.in_flight) + len(self.rates)

    def most_tokens(self) -> int:
        """Returns the tokens of the longest request."""
        turns = max(self.contexts, default=0) + (TURNS + 1) * (max(self.new, default=0) + TURN_OUTPUT)
        return max(turns if self.contexts and self.new else 0, MOST_TOKENS if self.in_flight or self.rates else 0)

    def run(self, engine: RunsRequests, workload: Workload) -> Iterator[WorkloadFigures]:
        """Runs each workload twice with different requests, and yields the figures of the second run."""
        for context, new in itertools.product(self.contexts, self.new):
            workload.run_turns(engine, context, new, WARM_TURNS, SEED + 1)
            yield workload.run_turns(engine, context, new, TURNS, SEED + 2)
        for in_flight in self.in_flight:
            workload.run_closed(engine, in_flight, max(4, in_flight), SEED + 50 + in_flight)
            yield workload.run_closed(engine, in_flight, max(8, 3 * in_flight), SEED + 1000 + in_flight)
        for rate in self.rates:
            workload.run_open(engine, rate, max(self.open_s / 3, 2 / rate), SEED + 3)
            yield workload.run_open(engine, rate, self.open_s, SEED + 4)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Draws jobs for a vocabulary; `scale` shortens every length, for a trial on a small model."""

    vocab_size: int
    scale: float = 1.0

    def scaled(self, count: int, least: int = 1) -> int:
        return max(least, int(count * self.scale))

    def draw_ids(self, rng: random.Random, count: int) -> list[int]:
        return [rng.randrange(self.vocab_size) for _ in range(count)]

    def draw_job(self, rng: random.Random, name: str, arrival_s: float = 0.0) -> WorkloadRequest:
        prompt = _draw_length(rng, PROMPT_LOG_MEAN, PROMPT_LOG_DEVIATION, LEAST_PROMPT, MOST_PROMPT)
        output = _draw_length(rng, OUTPUT_LOG_MEAN, OUTPUT_LOG_DEVIATION, LEAST_OUTPUT, MOST_OUTPUT)
        token_ids = self.draw_ids(rng, self.scaled(prompt, 4))
        return WorkloadRequest(
            name=name, token_ids=token_ids, num_output=self.scaled(output, 2), arrival_s=arrival_s
        )

    def run_closed(self, engine: RunsRequests, in_flight: int, num_requests: int, seed: int) -> WorkloadFigures:
        """Keeps `in_flight` requests in flight until `num_requests` are done."""
        rng, meter = random.Random(seed), WorkloadMeter(engine)
        jobs = [self.draw_job(rng, f"closed-{in_flight}-{seed}-{number}") for number in range(num_requests)]
        pending, start = iter(jobs), meter.clock()
        while meter.num_done < num_requests:
            while meter.num_in_flight < in_flight and (job := next(pending, None)) is not None:
                meter.send(job)
            meter.step()
        return meter.figures("closed", {"in_flight": in_flight}, jobs, meter.clock() - start)

    def run_open(self, engine: RunsRequests, rate: float, seconds: float, seed: int) -> WorkloadFigures:
        """Sends requests at random times for `seconds`, `rate` per second on average, and waits for all of them."""
        rng, meter = random.Random(seed), WorkloadMeter(engine)
        jobs = list(self._draw_arrivals(rng, rate, seconds, seed))
        if not jobs:
            raise UserError(f"no request arrives within {seconds} s at {rate} per second: raise one of them")
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

        The first request fills the prefix cache and does not count.
        """
        rng, meter = random.Random(seed), WorkloadMeter(engine)
        token_ids = self.draw_ids(rng, self.scaled(context, 4))
        jobs, start = [], meter.clock()
        for turn in range(num_turns + 1):
            name = f"turns-{context}-{new}-{seed}-{turn}"
            job = WorkloadRequest(name=name, token_ids=token_ids, num_output=self.scaled(TURN_OUTPUT, 2))
            start = meter.clock() if turn == 1 else start
            meter.send(job)
            while meter.num_in_flight:
                meter.step()
            jobs += [job] * bool(turn)
            token_ids = token_ids + meter.timelines[name].token_ids + self.draw_ids(rng, self.scaled(new, 4))
        parameters = {"context": self.scaled(context, 4), "new": self.scaled(new, 4)}
        return meter.figures("turns", parameters, jobs, meter.clock() - start)

    def _draw_arrivals(
        self, rng: random.Random, rate: float, seconds: float, seed: int
    ) -> Iterator[WorkloadRequest]:
        arrival_s, number = rng.expovariate(rate), 0
        while arrival_s < seconds:
            yield self.draw_job(rng, f"open-{rate}-{seed}-{number}", arrival_s)
            arrival_s, number = arrival_s + rng.expovariate(rate), number + 1


def _draw_length(rng: random.Random, log_mean: float, log_deviation: float, least: int, most: int) -> int:
    return min(most, max(least, int(rng.lognormvariate(log_mean, log_deviation))))
