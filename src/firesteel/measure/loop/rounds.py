"""Tokens per second of the engine at a given concurrency, and the time in each stage.

Prompts are random tokens, the same at each concurrency, and all are continued to the full length. A step that
computes one token of each request is decoding; any other step is prefill, even if it also decodes. Afterwards some
of the texts are rescored, which tells whether the timed tokens were right.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from firesteel.config import Config
from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.engine.statistics import Statistics
from firesteel.measure.loop.figures import STAGES
from firesteel.measure.record import Record
from firesteel.measure.tokens.rescore import Rescored, rescore
from firesteel.measure.tokens.runs import SEED, Outputs
from firesteel.types import Request, StepOutput

WARM_TOKENS = 4  # per request before the first round


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRound:
    """Rates of one pass over all requests, and seconds in each stage."""

    output_tok_s: float  # over the whole pass
    prefill_tok_s: float  # prompt tokens over the time of the prefill steps
    decode_tok_s: float  # new tokens of the decoding steps over their time
    first_token_s: float  # from submission, mean over requests
    token_s: float
    steps: int
    stages_s: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyFigures:
    """Rounds at one concurrency; properties are medians over rounds."""

    concurrency: int
    rounds: tuple[EngineRound, ...]
    reread: Rescored | None  # None if no text was rescored

    def median(self, name: str) -> float:
        return float(statistics.median(getattr(figures, name) for figures in self.rounds))

    def stage_ms(self, stage: str) -> float:
        """Milliseconds per step."""
        return statistics.median(1e3 * figures.stages_s[stage] / figures.steps for figures in self.rounds)

    def as_dict(self) -> dict[str, Any]:
        names = ("output_tok_s", "prefill_tok_s", "decode_tok_s", "first_token_s", "token_s", "steps")
        return {
            "concurrency": self.concurrency,
            **{name: self.median(name) for name in names},
            **{f"{stage}_ms_a_step": self.stage_ms(stage) for stage in STAGES},
            "reread": None if self.reread is None else self.reread.as_dict(),
        }


def measure_concurrency(
    engine: Engine, requests: Sequence[Request], concurrency: int, *, rounds: int, num_checked: int
) -> ConcurrencyFigures:
    """Runs a short untimed pass, then `rounds` timed ones, and rescores the first `num_checked` texts."""
    run_round(engine, [shortened(request) for request in requests[:concurrency]], concurrency)
    passes = [run_round(engine, requests, concurrency) for _ in range(rounds)]
    rescored = rescore(engine, requests[:num_checked], passes[-1][1].tokens) if num_checked else None
    return ConcurrencyFigures(
        concurrency=concurrency, rounds=tuple(figures for figures, _ in passes), reread=rescored
    )


def shortened(request: Request) -> Request:
    return replace(request, params=replace(request.params, max_tokens=min(WARM_TOKENS, request.max_new)))


def run_round(engine: Engine, requests: Sequence[Request], concurrency: int) -> tuple[EngineRound, Outputs]:
    """Runs all requests, at most `concurrency` at a time. Raises if one of them lacks tokens."""
    waiting, outputs = deque(requests), Outputs()
    before, clock, start = engine.statistics(), StepClock(), time.perf_counter()
    while waiting or engine.has_work:
        while waiting and len(engine.scheduler.jobs) < concurrency:
            engine.submit(replace(waiting.popleft(), arrival=time.monotonic()))
        outputs.take(clock.step(engine))
    seconds = time.perf_counter() - start
    outputs.check(requests)
    prefill = sum(request.num_prompt for request in requests) / clock.prefill_s
    return summarise(before, engine.statistics(), seconds, prefill, clock.num_decoded / clock.decode_s), outputs


@dataclass(slots=True)
class StepClock:
    """Times steps, separately for prefill and decoding."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    num_decoded: int = 0

    def step(self, engine: Engine) -> list[StepOutput]:
        tokens, spans, start = engine.totals.step_tokens, engine.totals.step_requests, time.perf_counter()
        outputs = engine.step()
        seconds = time.perf_counter() - start
        if engine.totals.step_tokens - tokens > engine.totals.step_requests - spans:
            self.prefill_s += seconds
        else:
            self.decode_s += seconds
            self.num_decoded += len(outputs)
        return outputs


def summarise(before: Statistics, after: Statistics, seconds: float, prefill: float, decode: float) -> EngineRound:
    def since(name: str) -> float:
        return float(getattr(after, name) - getattr(before, name))

    finished = since("requests_finished")
    return EngineRound(
        output_tok_s=since("output_tokens") / seconds,
        prefill_tok_s=prefill,
        decode_tok_s=decode,
        first_token_s=since("first_token_s") / finished,
        token_s=since("token_s") / finished,
        steps=int(since("steps")),
        stages_s={stage: since(f"{stage}_s") for stage in STAGES},
    )


def record(loaded: Loaded, config: Config, figures: ConcurrencyFigures, shape: dict[str, Any]) -> Record:
    """Builds the record; its samples are output tokens per second, one per round."""
    return Record.now(
        loaded.device,
        config,
        name="engine",
        unit="tok/s",
        samples=[passed.output_tok_s for passed in figures.rounds],
        warmups=min(figures.concurrency, shape["requests"]),
        seed=SEED,
        kernels=loaded.table(),
        startup_s=loaded.report.seconds,
        parameters={**figures.as_dict(), **shape, "pages": loaded.engine.totals.pages},
    )
