"""Profiles decoding steps of the built-in engine: what ran on the device, and what the host does; judges nothing.

A GPU is watched by torch's profiler. On a CPU every call of an op is timed as it passes the ledger.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.engine.statistics import Statistics
from firesteel.kernels.proof.profile_check import new_profiler
from firesteel.lab.trace import Slice, read_timeline
from firesteel.measure.tokens.runs import draw_requests
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
    """Decoding steps after prompts of `context` tokens, some watched and as many timed alone."""
    engine = loaded.engine
    params = SamplingParams(max_tokens=3 * steps + WARM_STEPS + 8)  # some run ahead
    for request in draw_requests([context] * batch, params, loaded.spec.vocab_size, seed=SEED):
        engine.submit(request)
    _begin_decoding(engine, batch)
    _take(engine, WARM_STEPS, loaded)
    watched = _watch_gpu(loaded, steps) if loaded.device.is_cuda else _watch_cpu(loaded, steps)
    while engine.has_work:
        engine.step()
    return watched


def _watch_gpu(loaded: Loaded, steps: int) -> Watched:
    """Timed, then watched by torch's profiler, then timed again: steps run ahead and cannot be told apart here."""
    before = loaded.engine.statistics()
    first_ms, outputs = _take(loaded.engine, steps, loaded)
    host = _host(before, loaded.engine.statistics(), steps, outputs)
    profiler = new_profiler()
    with profiler:
        _take(loaded.engine, steps, loaded)
    last_ms, _ = _take(loaded.engine, steps, loaded)
    return Watched(
        slices=_export(profiler), window_us=None, steps=steps, measured_ms=(first_ms + last_ms) / 2, host=host
    )


def _watch_cpu(loaded: Loaded, steps: int) -> Watched:
    """By turns timed alone and watched, so that a machine that slows down slows both; the watched form a row."""
    engine, now_us, alone_ms = loaded.engine, 0.0, 0.0
    slices: list[Slice] = []
    outputs: list[StepOutput] = []
    before = engine.statistics()
    for _ in range(steps):
        alone_ms += _take(engine, 1, loaded)[0]
        with _noting(loaded) as noted:
            start = time.perf_counter()
            outputs = engine.step()
            end = time.perf_counter()
        slices += [Slice(op, now_us + 1e6 * (a - start), now_us + 1e6 * (b - start)) for op, a, b in noted]
        now_us += 1e6 * (end - start)
    return Watched(
        slices=slices, window_us=(0.0, now_us), steps=steps, measured_ms=alone_ms / steps,
        host=_host(before, engine.statistics(), 2 * steps, outputs),
    )  # fmt: skip


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
def _noting(loaded: Loaded) -> Iterator[list[tuple[str, float, float]]]:
    """Each call of an op inside: its name, begin and end."""
    noted: list[tuple[str, float, float]] = []
    ledger = loaded.kernels.ledger
    plain = ledger.run

    def run(ran: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return plain(ran, function, *args, **kwargs)
        finally:
            noted.append((ran.op, start, time.perf_counter()))

    ledger.run = run  # type: ignore[method-assign]
    try:
        yield noted
    finally:
        ledger.run = plain  # type: ignore[method-assign]


def _export(profiler: Any) -> list[Slice]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_timeline(path)


def _host(before: Statistics, after: Statistics, steps: int, outputs: Sequence[StepOutput]) -> list[dict[str, Any]]:
    stages = [
        {"stage": title, "ms": 1e3 * (getattr(after, name) - getattr(before, name)) / steps}
        for name, title in STAGES.items()
    ]
    return [*stages, {"stage": "process border", "ms": border_ms(outputs)}]


def border_ms(outputs: Sequence[StepOutput]) -> float:
    """A step's outputs packed and read again, as they cross from the engine's process."""
    content = [[output.request_id, list(output.token_ids), output.finish_reason] for output in outputs]
    start = time.perf_counter()
    for _ in range(REPEATS):
        msgspec.msgpack.decode(msgspec.msgpack.encode(content))
    return 1e3 * (time.perf_counter() - start) / REPEATS
