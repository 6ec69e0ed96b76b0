"""One pass over requests that begin together, timed from the first step that only decodes to the first end of one.

Each token is checked against stop tokens, turned into text and searched for stop strings, as a client's would be.
Knows no figure.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from firesteel.chat.tokenizer import Tokenizer
from firesteel.cli.bench.engine import STAGES
from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.engine.step.decode_loop import UNOBSERVED, StepObserver
from firesteel.engine.step.step_store import ReadyStep
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.llm import Continuation
from firesteel.measure.decode.experts import ExpertMeter
from firesteel.measure.decode.marks import StepMarks
from firesteel.measure.tokens.runs import Outputs
from firesteel.types import Request, StepOutput

NUM_WORDS = 4000  # of Kindling's vocabulary
FEWEST_STEPS = 2  # each is timed from the end of the one before


class Timed:
    def __init__(self, loaded: Loaded, requests: Sequence[Request]) -> None:
        self.engine, self.requests = loaded.engine, requests
        self.marks = StepMarks(loaded.device)
        self.made = Outputs()
        self.readers = {one.request_id: Reader(one) for one in requests}
        self.num_tokens, self.seconds = 0, 0.0
        self.stages_s: dict[str, float] = {}  # of the timed part: those of the engine, and reading
        self._read_s = 0.0

    def run(self) -> tuple[ReadyStep, list[torch.Tensor]]:
        """The step that was launched, and its inputs half way."""
        engine = self.engine
        for request in self.requests:
            engine.submit(request)
        while len(self.made.tokens) < len(self.requests):
            self._step()
        found = self._run_timed(StepObserver(before_launch=self.marks.before, after_launch=self.marks.after))
        while engine.has_work:
            self._step()
        self.made.check(self.requests)
        return found

    def _run_timed(self, observer: StepObserver) -> tuple[ReadyStep, list[torch.Tensor]]:
        engine, batch, loop = self.engine, len(self.requests), self.engine.loop
        found: tuple[ReadyStep, list[torch.Tensor]] | None = None
        half, before = min(one.max_new for one in self.requests) // 2, self._stages()
        start = time.perf_counter()
        while len(engine.scheduler.running) == batch:
            self.num_tokens += len(self._step(observer))
            self.seconds = time.perf_counter() - start
            if found is None and self.num_tokens >= batch * half:
                found = loop.current, loop.current.step.copy()
        self.stages_s = {stage: seconds - before[stage] for stage, seconds in self._stages().items()}
        if self.num_tokens < FEWEST_STEPS * batch:
            raise UserError(
                f"{batch} requests were decoded together in {self.num_tokens // batch} steps, and {FEWEST_STEPS} "
                "are needed to time one: raise --steps"
            )
        return found or (loop.current, loop.current.step.copy())

    def _step(self, observer: StepObserver = UNOBSERVED) -> list[StepOutput]:
        outputs = self.engine.step(observer)
        start = time.perf_counter()
        for output in outputs:
            self.readers[output.request_id].push(output)
        self._read_s += time.perf_counter() - start
        self.made.take(outputs)
        return outputs

    def _stages(self) -> dict[str, float]:
        """Seconds so far."""
        totals = self.engine.totals
        return {**{stage: getattr(totals, f"{stage}_s") for stage in STAGES}, "read": self._read_s}


class Reader:
    """What a client does with each token: text, and a search for stop strings. Kindling lends its words."""

    tokenizer: Tokenizer | None = None

    def __init__(self, request: Request) -> None:
        if Reader.tokenizer is None:
            Reader.tokenizer = Tokenizer.load(find_checkpoint("kindling"))
        self.continuation = Continuation(Reader.tokenizer, request)

    def push(self, output: StepOutput) -> None:
        self.continuation.push(replace(output, token_ids=[token % NUM_WORDS for token in output.token_ids]))


def run_watched(engine: Engine, requests: Sequence[Request], meter: ExpertMeter) -> None:
    """Untimed: `meter` looks at each step that decodes all requests."""
    loop = engine.loop

    def look() -> None:
        if len(engine.scheduler.running) == len(requests):
            meter.look(loop.current.step)

    for request in requests:
        engine.submit(request)
    observer = StepObserver(before_launch=look)
    while engine.has_work:
        engine.step(observer)
