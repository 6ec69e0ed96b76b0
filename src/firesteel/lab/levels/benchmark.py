"""Level 4: speeds and latencies by llama-benchy's definitions, with records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firesteel.config import Config, resolve
from firesteel.device import DeviceSpec
from firesteel.lab.bench.bench import measure
from firesteel.lab.bench.result import BenchResult
from firesteel.lab.bench.roof import find_roof
from firesteel.lab.level import BENCHMARK
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.levels.formats import find_formats, find_served
from firesteel.lab.servers.target import Target
from firesteel.lab.verdict import Verdict
from firesteel.measure.record import Record

SPEEDS = ("pp_tok_s", "tg_tok_s")
SHOWN = 3  # failures and doubts in words
LATENCY_CURE = "prompt speeds of these are doubtful: measure longer prompts (--pp), or on the server's own machine"


def run_benchmark(context: LevelContext) -> LevelResult:
    target = context.target
    with target.step("benchmark"):
        bench = measure_target(target, context)
    if target.server is not None and bench.failures:
        target.server.check()
    checks = Checks(BENCHMARK)
    words = in_brief(bench.failures) or f"{len(bench.rows)} workloads, none failed"
    checks.add("requests", not bench.failures, words)
    if bench.doubts:
        checks.add("latency", Verdict.UNPROVEN, in_brief(bench.doubts), cure=LATENCY_CURE)
    save_records(target, bench, context.device, resolve().config)
    return checks.result(describe(bench), bench=bench)


def measure_target(target: Target, context: LevelContext) -> BenchResult:
    spec, device = context.spec, context.device
    server, ledger = target.server, target.read_ledger()
    formats = find_formats(target, spec, ledger, context.result_so_far().any_slots)
    bench = measure(
        target.api.url,
        target.api.model,
        spec.bench_plan,
        api_key=target.api.api_key,
        timeout_s=target.api.timeout_s,
        served=find_served(target.model, formats),
        roof=find_roof(device.name if ledger is None else ledger.device or device.name),
        pid=None if server is None else server.processes.leader or None,
        startup_s=None if server is None else server.startup_s,
        progress=lambda done, count, name: report_progress(target, done, count, name),
    )
    return replace(bench, formats=dict(formats))


def report_progress(target: Target, done: int, count: int, name: str) -> None:
    """Reports progress and names the step, for the diagnosis of a server that is lost there."""
    target.on_progress(f"workload {done} of {count}: {name}")
    if target.server is not None:
        target.server.step = f"benchmark, {name}" if name else "benchmark"


def in_brief(lines: Sequence[str]) -> str:
    return "; ".join(lines[:SHOWN]) + (f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else "")


def describe(bench: BenchResult) -> str:
    """Returns the speeds of the first and the last workload, and the acceptance of drafted tokens."""
    chosen = [bench.rows[0], bench.rows[-1]] if len(bench.rows) > 1 else bench.rows
    parts = []
    for row in chosen:
        speeds = [f"{name[:2]} {row.series[name].median:.1f} tok/s" for name in SPEEDS if name in row.series]
        parts.append(f"{row.name}: {', '.join(speeds)}")
    parts += [] if bench.speculation is None else [bench.speculation.in_words()]
    return "; ".join(parts)


def save_records(target: Target, bench: BenchResult, device: DeviceSpec, config: Config) -> None:
    """Saves a record per workload and speed."""
    for row in bench.rows:
        for name in SPEEDS:
            series = row.series.get(name)
            if series is None:
                continue
            record = Record.now(
                device,
                config,
                name=f"lab {name} {row.name}",
                unit="tok/s",
                samples=series.values,
                warmups=bench.plan.warmups,
                seed=bench.plan.seed,
                startup_s=bench.startup_s,
                parameters={"engine": target.kind, "model": bench.model, "url": bench.url},
            )
            record.save(target.folder / "records")
