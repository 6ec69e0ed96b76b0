"""Time from a prompt to its first token, through the engine, one request at a time.

Prompts are random tokens, all different, so that no prefix is cached and every token is computed.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from firesteel.config import Config
from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.errors import UserError
from firesteel.heap import settled_heap
from firesteel.measure.record import Record
from firesteel.measure.tokens.runs import SEED, draw_requests
from firesteel.types import Request, SamplingParams

WARM_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFigures:
    tokens: int
    samples_ms: tuple[float, ...]
    steps: int  # per prompt

    @property
    def milliseconds(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def tok_s(self) -> float:
        return 1e3 * self.tokens / self.milliseconds

    def as_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "ms": self.milliseconds, "tok_s": self.tok_s, "steps": self.steps}


def measure_prefill(loaded: Loaded, length: int, rounds: int) -> PrefillFigures:
    """Times `rounds` prompts of `length` tokens after a few untimed ones."""
    params = SamplingParams(max_tokens=1)
    prompts = draw_requests([length] * (WARM_ROUNDS + rounds), params, loaded.spec.vocab_size, seed=SEED + length)
    before = loaded.engine.totals.steps
    with settled_heap():
        samples = [time_prompt(loaded.engine, request) for request in prompts]
    steps = (loaded.engine.totals.steps - before) // len(prompts)
    return PrefillFigures(tokens=length, samples_ms=tuple(samples[WARM_ROUNDS:]), steps=steps)


def time_prompt(engine: Engine, request: Request) -> float:
    """Returns milliseconds. Raises if no token came or part of the prompt was cached."""
    start = time.perf_counter()
    engine.submit(request)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    milliseconds = 1e3 * (time.perf_counter() - start)
    if not outputs or outputs[-1].finish_reason != "length" or outputs[-1].num_cached:
        last = outputs[-1] if outputs else None
        raise UserError(f"a prompt of {request.num_prompt} tokens was not computed to its first token: {last}")
    return milliseconds


def record(loaded: Loaded, config: Config, figures: PrefillFigures, name: str) -> Record:
    """Builds the record; its samples are milliseconds, one per prompt."""
    return Record.now(
        loaded.device,
        config,
        name=f"engine prefill {figures.tokens}",
        unit="ms",
        samples=figures.samples_ms,
        warmups=WARM_ROUNDS,
        seed=SEED,
        kernels=loaded.kernels.table(),
        startup_s=loaded.report.seconds,
        parameters={"model": name, **figures.as_dict()},
    )
