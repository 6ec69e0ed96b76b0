"""Profiles decoding steps of the built-in engine: what ran on the device, and what the host does; judges nothing.

A GPU is watched by torch's profiler. On a CPU every call of an op is timed as it passes the ledger.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.engine.statistics import Statistics
from firesteel.lab.timeline import Slice, read_timeline
from firesteel.measure.runs import draw_requests
from firesteel.types import SamplingParams, StepOutput

STAGES = {
    "schedule_s": "scheduler",
    "build_s": "batch building",
    "run_s": "model",
    "wait_s": "sampling and waiting",
}
WARM_STEPS = 4
SEED = 0
REPEATS = 200  # of a border crossing


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    slices: list[Slice]
    window_us: tuple[float, float] | None  # on the slices' clock; None where a GPU's profiler has its own
    steps: int
    measured_ms: float  # a step, timed without a profiler
    host: list[dict[str, Any]]


def watch_steps(loaded: Loaded, *, batch: int, context: int, steps: int) -> Watched:
    """Decoding steps after prompts of `context` tokens: timed alone, then watched, then timed again."""
    engine = loaded.engine
    params = SamplingParams(max_tokens=3 * steps + WARM_STEPS + 8)  # some run ahead
    for request in draw_requests([context] * batch, params, loaded.spec.vocab_size, seed=SEED):
        engine.submit(request)
    _begin_decoding(engine, batch)
    _take(engine, WARM_STEPS, loaded)
    before = engine.statistics()
    first_ms, outputs = _take(engine, steps, loaded)
    host = stages_of(before, engine.statistics(), steps)
    host.append({"stage": "process border", "ms": border_ms(outputs)})
    with _watching(loaded) as read:
        begin = 1e6 * time.perf_counter()
        _take(engine, steps, loaded)
        window_us = None if loaded.device.is_cuda else (begin, 1e6 * time.perf_counter())
    last_ms, _ = _take(engine, steps, loaded)
    while engine.has_work:
        engine.step()
    measured_ms = (first_ms + last_ms) / 2
    return Watched(slices=read(), window_us=window_us, steps=steps, measured_ms=measured_ms, host=host)


def _begin_decoding(engine: Engine, batch: int) -> None:
    """Until every request has its first token."""
    begun: set[str] = set()
    while len(begun) < batch:
        begun |= {output.request_id for output in engine.step() if output.token_ids}


def _take(engine: Engine, steps: int, loaded: Loaded) -> tuple[float, list[StepOutput]]:
    """Milliseconds a step, and what the last one gave."""
    _wait(loaded)
    start = time.perf_counter()
    outputs: list[StepOutput] = []
    for _ in range(steps):
        outputs = engine.step()
    _wait(loaded)
    return 1e3 * (time.perf_counter() - start) / steps, outputs


def _wait(loaded: Loaded) -> None:
    if loaded.device.is_cuda:
        torch.cuda.synchronize(loaded.device.torch_device)


@contextmanager
def _watching(loaded: Loaded) -> Iterator[Callable[[], list[Slice]]]:
    """Gives a function that reads what ran, once the body is done."""
    if loaded.device.is_cuda:
        from torch.profiler import ProfilerActivity, profile

        profiler: Any = profile(activities=[ProfilerActivity.CUDA])
        with profiler:
            yield lambda: _export(profiler)
        return
    slices: list[Slice] = []
    ledger = loaded.kernels.ledger
    plain = ledger.run

    def run(ran: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return plain(ran, function, *args, **kwargs)
        finally:
            slices.append(Slice(ran.op, 1e6 * start, 1e6 * time.perf_counter()))

    ledger.run = run  # type: ignore[method-assign]
    try:
        yield lambda: sorted(slices, key=lambda one: one.start_us)
    finally:
        ledger.run = plain  # type: ignore[method-assign]


def _export(profiler: Any) -> list[Slice]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_timeline(path)


def stages_of(before: Statistics, after: Statistics, steps: int) -> list[dict[str, Any]]:
    return [
        {"stage": title, "ms": 1e3 * (getattr(after, name) - getattr(before, name)) / steps}
        for name, title in STAGES.items()
    ]


def border_ms(outputs: Sequence[StepOutput]) -> float:
    """A step's outputs packed and read again, as they cross from the engine's process."""
    content = [[output.request_id, list(output.token_ids), output.finish_reason] for output in outputs]
    start = time.perf_counter()
    for _ in range(REPEATS):
        msgspec.msgpack.decode(msgspec.msgpack.encode(content))
    return 1e3 * (time.perf_counter() - start) / REPEATS
