"""Decoding through the whole engine: start-up, timed passes, experts, bare replays and records.

Requests have distinct prompts of random tokens and are continued greedily, or by random draws. Everything runs once
untimed, and experts are counted on the way. A bare replay launches the step of the middle depth and does nothing
else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from firesteel.config import Config
from firesteel.engine.load import Loaded
from firesteel.errors import UserError
from firesteel.heap import settled_heap
from firesteel.measure.decode.experts import ExpertCount, ExpertMeter, spread_points
from firesteel.measure.decode.figures import kv_format
from firesteel.measure.decode.kernel_caches import CacheWatch
from firesteel.measure.decode.steps import time_steps
from firesteel.measure.loop.figures import LoopFigures, Startup
from firesteel.measure.loop.run import OpenReader, TimedPass, run_watched
from firesteel.measure.record import Record
from firesteel.measure.roofline.roofline import StepCost, StepShape, step_cost
from firesteel.measure.tokens.rescore import rescore
from firesteel.measure.tokens.runs import SEED, draw_requests
from firesteel.types import Request, SamplingParams

BARE_STEPS = 200
EXPERT_POINTS = 5  # fewest steps per run whose experts are counted
EXPERT_TOKENS = 100  # fewest tokens per run whose experts are counted
NEVER = "\x00 no text says this \x00"  # stop string that is searched for and never found


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSweep:
    """Batch sizes and prompt lengths to measure, each with each."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    tokens: int  # generated per request
    temperature: float = 0.0

    def cases(self) -> list[tuple[int, int]]:
        return [(batch, context) for batch in self.batches for context in self.contexts]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSubject:
    """The model to measure, its settings, its start-up and the ceiling of the same run."""

    name: str
    loaded: Loaded
    config: Config
    startup: Startup
    read_gb_s: float


def check_sweep(sweep: LoopSweep, loaded: Loaded) -> None:
    """Raises unless the context and the cache have room for the largest case."""
    batch, context, tokens = max(sweep.batches), max(sweep.contexts), sweep.tokens
    if context + tokens + 1 > loaded.max_context:
        raise UserError(
            f"{context} + {tokens} tokens per request and one more exceed the context of {loaded.max_context}: "
            "lower --context or --steps"
        )
    needed = batch * loaded.engine.scheduler.tables.layout.count_pages(context + tokens, chunk=context)
    if needed > loaded.engine.totals.pages:
        raise UserError(
            f"{batch} x {context + tokens} tokens need {needed} pages, the cache has "
            f"{loaded.engine.totals.pages}: raise --kv-cache-gib, or lower --batch, --context or --steps"
        )


def measure_startup(loaded: Loaded, opened_s: float, caches: CacheWatch) -> Startup:
    """Times the first two tokens of a short prompt, compilation and capture included.

    `opened_s` are the seconds already spent since the weights were on the device.
    """
    engine, start, times = loaded.engine, time.perf_counter(), []
    engine.submit(draw(loaded, 1, 64, 2)[0])
    while engine.has_work:
        if engine.step():
            times.append(opened_s + time.perf_counter() - start)
    return Startup(first_token_s=times[0], second_token_s=times[1], caches=caches.read())


def measure_all(
    sweep: LoopSweep,
    subject: LoopSubject,
    open_reader: OpenReader,
    out: Path,
    *,
    progress: Callable[[int, int], None],
) -> Iterator[LoopFigures]:
    """Measures all cases and saves each record as soon as it is made."""
    for done, (batch, context) in enumerate(sweep.cases(), start=1):
        figures = measure(sweep, subject, batch, context, open_reader)
        record(subject, figures).save(out)
        progress(done, len(sweep.cases()))
        yield figures


def measure(
    sweep: LoopSweep, subject: LoopSubject, batch: int, context: int, open_reader: OpenReader
) -> LoopFigures:
    """Measures one case. Greedy tokens are rescored; random draws are not the most likely tokens."""
    loaded, engine = subject.loaded, subject.loaded.engine
    requests = draw(loaded, batch, context, sweep.tokens, sweep.temperature)
    num_points = max(EXPERT_POINTS, -(-EXPERT_TOKENS // batch))
    meter = ExpertMeter(spread_points(sweep.tokens - 1, num_points))  # the first token comes with the prompt
    run_watched(engine, requests, meter)
    for held in (context, context + sweep.tokens):
        engine.loop.store.find(batch, held)
    timed = TimedPass(loaded, requests, open_reader)
    with settled_heap():
        ready, begin = timed.run()
    with torch.inference_mode():
        bare = time_steps(ready.launch, lambda: ready.step.restore(begin), loaded.device, steps=BARE_STEPS)
    experts = meter.count(loaded.spec)
    return LoopFigures(
        context=context,
        temperature=sweep.temperature,
        num_tokens=timed.num_tokens,
        seconds=timed.seconds,
        stages_s=timed.stages_s,
        times=timed.marks.read(),
        bare_ms=bare,
        read_gb_s=subject.read_gb_s,
        experts=experts,
        cost=find_cost(loaded, batch, context + sweep.tokens // 2, experts),
        reread=None if sweep.temperature else rescore(engine, requests[:1], timed.outputs.tokens),
        is_captured=ready.is_captured,
    )


def find_cost(loaded: Loaded, batch: int, context: int, experts: ExpertCount) -> StepCost:
    """Returns what a step at this depth must read."""
    step = StepShape(
        mxfp4_layers=loaded.spec.mxfp4_layers,
        kv=kv_format(loaded.engine.runner.cache),
        context=context,
        requests=batch,
        distinct_experts=experts.per_step,
    )
    return step_cost(loaded.spec, step)


def draw(loaded: Loaded, batch: int, context: int, tokens: int, temperature: float = 0.0) -> list[Request]:
    """Draws requests with a seed each. Their stop tokens lie outside the vocabulary: checked, never met."""
    vocab_size = loaded.spec.vocab_size
    params = SamplingParams(max_tokens=tokens, stop=(NEVER,), temperature=temperature)
    requests = draw_requests([context] * batch, params, vocab_size, seed=SEED)
    stops = frozenset((vocab_size, vocab_size + 1))
    return [
        replace(request, stops=stops, params=replace(request.params, seed=SEED + number))
        for number, request in enumerate(requests)
    ]


def record(subject: LoopSubject, figures: LoopFigures) -> Record:
    """Builds the record; its samples are milliseconds from the end of a step to the end of the next."""
    loaded = subject.loaded
    return Record.now(
        loaded.device,
        subject.config,
        name=f"engine decode batch {figures.batch} context {figures.context}",
        unit="ms",
        samples=figures.times.steps_ms,
        warmups=round(figures.num_steps),
        seed=SEED,
        kernels=loaded.table(),
        startup_s=loaded.report.seconds,
        parameters={
            "model": subject.name,
            **figures.as_dict(),
            "startup": subject.startup.as_dict(),
            "pages": loaded.engine.totals.pages,
            "run_ahead_steps": loaded.engine.run_ahead_steps,
        },
    )
