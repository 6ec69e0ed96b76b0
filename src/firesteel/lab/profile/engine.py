"""Profiles decoding steps and prompts of the built-in engine: what ran on the device, and what the host did.

On a GPU torch's profiler is used. On a CPU every call of an op is timed as it passes the ledger.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch

from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.engine.statistics import Statistics
from firesteel.kernels.proof.profile_check import new_profiler
from firesteel.lab.profile.profile import HostTime
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
WARM_ROUNDS = 2  # of prompts: graphs and kernels are made in the first
SEED = 0
REPEATS = 200  # of encoding and decoding a step's outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledSteps:
    """Figures are per unit: a decoding step, or a prompt from its submission to its first token."""

    slices: list[Slice]
    window_us: tuple[float, float] | None  # on the slices' clock; None if a GPU's profiler has its own
    steps: int
    measured_ms: float  # without a profiler
    host: list[HostTime]
    engine_steps: float = 1.0  # of the engine, per unit: a long prompt takes several


def profile_steps(loaded: Loaded, *, batch: int, context: int, steps: int) -> ProfiledSteps:
    """Runs decoding steps after prompts of `context` tokens; some are profiled and as many are only timed."""
    engine = loaded.engine
    params = SamplingParams(max_tokens=3 * steps + WARM_STEPS + 8)  # some steps run ahead
    for request in draw_requests([context] * batch, params, loaded.spec.vocab_size, seed=SEED):
        engine.submit(request)
    _start_decoding(engine, batch)
    for _ in range(WARM_STEPS):
        engine.step()
    profiled = _profile(loaded, steps, engine.step)
    while engine.has_work:
        engine.step()
    return profiled


def profile_prompts(loaded: Loaded, *, batch: int, length: int, rounds: int) -> ProfiledSteps:
    """Reads `batch` prompts of `length` tokens at once, `rounds` times; some are profiled and others only timed.

    A round ends when every prompt has its first token, so that no decoding is in it.
    """
    engine = loaded.engine
    params = SamplingParams(max_tokens=1)
    drawn = draw_requests(
        [length] * (batch * (WARM_ROUNDS + 3 * rounds)), params, loaded.spec.vocab_size, seed=SEED
    )
    prompts = iter(drawn)

    def read() -> list[StepOutput]:
        for request in islice(prompts, batch):
            engine.submit(request)
        outputs: list[StepOutput] = []
        while engine.has_work:
            outputs = engine.step() or outputs
        return outputs

    for _ in range(WARM_ROUNDS):
        read()
    return _profile(loaded, rounds, read)


def _profile(loaded: Loaded, count: int, run: Callable[[], list[StepOutput]]) -> ProfiledSteps:
    """Profiles `count` units; `run` computes one and returns its last outputs."""
    before = loaded.engine.statistics().steps
    profiled = _profile_gpu(loaded, count, run) if loaded.device.is_cuda else _profile_cpu(loaded, count, run)
    units = count * (3 if loaded.device.is_cuda else 2)
    return replace(profiled, engine_steps=(loaded.engine.statistics().steps - before) / units)


def _profile_gpu(loaded: Loaded, count: int, run: Callable[[], list[StepOutput]]) -> ProfiledSteps:
    """Times units before and after the profiled ones: steps run ahead, so they cannot be told apart here."""
    before = loaded.engine.statistics()
    first_ms, outputs = _time(loaded, count, run)
    host = _host_times(before, loaded.engine.statistics(), count, outputs)
    profiler = new_profiler()
    with profiler:
        _time(loaded, count, run)
    last_ms, _ = _time(loaded, count, run)
    return ProfiledSteps(
        slices=_export(profiler), window_us=None, steps=count, measured_ms=(first_ms + last_ms) / 2, host=host
    )


def _profile_cpu(loaded: Loaded, count: int, run: Callable[[], list[StepOutput]]) -> ProfiledSteps:
    """Alternates timed and profiled units, so that a machine that slows down affects both alike."""
    engine, now_us, unprofiled_ms = loaded.engine, 0.0, 0.0
    slices: list[Slice] = []
    outputs: list[StepOutput] = []
    before = engine.statistics()
    for _ in range(count):
        unprofiled_ms += _time(loaded, 1, run)[0]
        with _timing_ops(loaded) as calls:
            start = time.perf_counter()
            outputs = run()
            end = time.perf_counter()
        slices += [
            Slice(op, now_us + 1e6 * (began - start), now_us + 1e6 * (ended - start)) for op, began, ended in calls
        ]
        now_us += 1e6 * (end - start)
    return ProfiledSteps(
        slices=slices,
        window_us=(0.0, now_us),
        steps=count,
        measured_ms=unprofiled_ms / count,
        host=_host_times(before, engine.statistics(), 2 * count, outputs),
    )


def _start_decoding(engine: Engine, batch: int) -> None:
    """Steps until every request has its first token."""
    started: set[str] = set()
    while len(started) < batch:
        started |= {output.request_id for output in engine.step() if output.token_ids}


def _time(loaded: Loaded, count: int, run: Callable[[], list[StepOutput]]) -> tuple[float, list[StepOutput]]:
    """Returns the milliseconds per unit, and the outputs of the last one."""
    _synchronize(loaded)
    start = time.perf_counter()
    outputs: list[StepOutput] = []
    for _ in range(count):
        outputs = run()
    _synchronize(loaded)
    return 1e3 * (time.perf_counter() - start) / count, outputs


def _synchronize(loaded: Loaded) -> None:
    if loaded.device.is_cuda:
        torch.cuda.synchronize(loaded.device.torch_device)


@contextmanager
def _timing_ops(loaded: Loaded) -> Iterator[list[tuple[str, float, float]]]:
    """Yields a list that receives the name, start and end of each call of an op inside the block."""
    calls: list[tuple[str, float, float]] = []
    ledger = loaded.kernels.ledger
    plain = ledger.run

    def run(ran: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return plain(ran, function, *args, **kwargs)
        finally:
            calls.append((ran.op, start, time.perf_counter()))

    ledger.run = run  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        ledger.run = plain  # type: ignore[method-assign]


def _export(profiler: Any) -> list[Slice]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_timeline(path)


def _host_times(before: Statistics, after: Statistics, steps: int, outputs: Sequence[StepOutput]) -> list[HostTime]:
    stages = [
        HostTime(stage=title, ms=1e3 * (getattr(after, name) - getattr(before, name)) / steps)
        for name, title in STAGES.items()
    ]
    return [*stages, HostTime(stage="process border", ms=measure_border_ms(outputs))]


def measure_border_ms(outputs: Sequence[StepOutput]) -> float:
    """Measures encoding and decoding of a step's outputs, as when they cross from the engine's process."""
    content = [[output.request_id, list(output.token_ids), output.finish_reason] for output in outputs]
    start = time.perf_counter()
    for _ in range(REPEATS):
        msgspec.msgpack.decode(msgspec.msgpack.encode(content))
    return 1e3 * (time.perf_counter() - start) / REPEATS
