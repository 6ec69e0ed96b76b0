"""One pass over requests that start together, timed while all of them decode.

Timing starts when the tokens of the first step that only decodes are read, because that step is launched together
with the prompts, and stops when the first request ends. Each token is handed to the reader of its request, as a
server would hand it to a client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.engine.step.decode_loop import UNOBSERVED, StepObserver
from firesteel.engine.step.step_store import ReadyStep
from firesteel.errors import UserError
from firesteel.measure.decode.experts import ExpertMeter
from firesteel.measure.decode.marks import StepMarks
from firesteel.measure.loop.figures import STAGES
from firesteel.measure.tokens.runs import Outputs
from firesteel.types import Request, StepOutput

FEWEST_STEPS = 2  # the time of a step runs from the end of the previous one
ReadOutput = Callable[[StepOutput], None]
OpenReader = Callable[[Request], ReadOutput]


class TimedPass:
    """Runs `requests` once. `open_reader` returns what reads the outputs of a request; its time is a stage."""

    def __init__(self, loaded: Loaded, requests: Sequence[Request], open_reader: OpenReader) -> None:
        self.engine, self.requests = loaded.engine, requests
        self.marks = StepMarks(loaded.device)
        self.outputs = Outputs()
        self.readers = {request.request_id: open_reader(request) for request in requests}
        self.num_tokens, self.seconds = 0, 0.0
        self.stages_s: dict[str, float] = {}  # stages of the engine and reading, over the timed part
        self._read_s = 0.0

    def run(self) -> tuple[ReadyStep, list[torch.Tensor]]:
        """Returns the step that was launched half-way through the timed part, and its inputs at that point."""
        for request in self.requests:
            self.engine.submit(request)
        while len(self.outputs.tokens) < len(self.requests):
            self._step()
        self._step()
        half_way = self._run_timed(StepObserver(before_launch=self.marks.before, after_launch=self.marks.after))
        while self.engine.has_work:
            self._step()
        self.outputs.check(self.requests)
        return half_way

    def _run_timed(self, observer: StepObserver) -> tuple[ReadyStep, list[torch.Tensor]]:
        engine, batch, loop = self.engine, len(self.requests), self.engine.loop
        half_way: tuple[ReadyStep, list[torch.Tensor]] | None = None
        half, before = min(request.max_new for request in self.requests) // 2, self._stages()
        start = time.perf_counter()
        while len(engine.scheduler.running) == batch:
            self.num_tokens += len(self._step(observer))
            self.seconds = time.perf_counter() - start
            if half_way is None and self.num_tokens >= batch * half:
                half_way = loop.current, loop.current.step.copy()
        self.stages_s = {stage: seconds - before[stage] for stage, seconds in self._stages().items()}
        if self.num_tokens < FEWEST_STEPS * batch:
            raise UserError(
                f"only {self.num_tokens // batch} steps decoded {batch} requests together; timing needs at least "
                f"{FEWEST_STEPS}: raise --steps"
            )
        return half_way or (loop.current, loop.current.step.copy())

    def _step(self, observer: StepObserver = UNOBSERVED) -> list[StepOutput]:
        outputs = self.engine.step(observer)
        start = time.perf_counter()
        for output in outputs:
            self.readers[output.request_id](output)
        self._read_s += time.perf_counter() - start
        self.outputs.take(outputs)
        return outputs

    def _stages(self) -> dict[str, float]:
        """Returns the seconds spent in each stage so far."""
        totals = self.engine.totals
        return {**{stage: getattr(totals, f"{stage}_s") for stage in STAGES}, "read": self._read_s}


def run_watched(engine: Engine, requests: Sequence[Request], meter: ExpertMeter) -> None:
    """Runs `requests` untimed; `meter` looks at every step that decodes all of them."""

    def look() -> None:
        if len(engine.scheduler.running) == len(requests):
            meter.look(engine.loop.current.step)

    for request in requests:
        engine.submit(request)
    observer = StepObserver(before_launch=look)
    while engine.has_work:
        engine.step(observer)
