"""Level 4: speeds and latencies by llama-benchy's definitions, with records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from firesteel.config import Config, resolve
from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.bench.bench import measure
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.bench.result import BenchResult
from firesteel.lab.bench.roof import ServedModel, find_roof
from firesteel.lab.level import BENCHMARK
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.path.ledger import ServerLedger
from firesteel.lab.servers.commands import VLLM, VLLM_WITH_PLUGIN
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from firesteel.measure.record import Record
from firesteel.model.spec import PRESETS, read_spec

SPEEDS = ("pp_tok_s", "tg_tok_s")


def run_benchmark(context: LevelContext) -> LevelResult:
    target = context.target
    with target.step("benchmark"):
        bench = measure_target(target, context.spec, context.device)
    if target.server is not None and bench.failures:
        target.server.check()
    checks = Checks(BENCHMARK)
    words = "; ".join(bench.failures[:3]) or f"{len(bench.rows)} workloads, none failed"
    checks.add("requests", not bench.failures, words)
    save_records(target, bench, context.device, resolve().config)
    return checks.result(describe(bench), bench=bench)


def measure_target(target: Target, spec: LabSpec, device: DeviceSpec) -> BenchResult:
    server, ledger = target.server, target.read_ledger()
    formats = find_formats(ledger, target, spec)
    bench = measure(
        target.api.url,
        target.api.model,
        choose_plan(spec),
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


def choose_plan(spec: LabSpec) -> BenchPlan:
    return BenchPlan.quick() if spec.quick else BenchPlan()


def find_formats(ledger: ServerLedger | None, target: Target, spec: LabSpec) -> Mapping[str, str]:
    """Returns the formats that firesteel states; empty if they are unknown.

    vLLM and SGLang, if the lab started them, hold the checkpoint's formats, and the KV cache as their flag says,
    unless a flag quantises the model, or a setting of ours the plugin's.
    """
    if ledger is not None and ledger.formats:
        return ledger.formats
    is_known_engine = target.server is not None and target.kind in (VLLM, VLLM_WITH_PLUGIN, "sglang")
    if not is_known_engine or spec.engine_flag("quantization"):
        return {}
    ours = resolve().config
    if target.kind == VLLM_WITH_PLUGIN and (ours.kernels.mxfp4_layers or ours.cache.kv_dtype != "auto"):
        return {}
    is_fp8 = any("fp8" in value for value in spec.engine_flag("kv-cache-dtype"))
    return {"mxfp4_layers": "", "kv": "float8" if is_fp8 else "bfloat16"}


def find_served(model: str, formats: Mapping[str, str]) -> ServedModel | None:
    """Finds the sizes by the checkpoint, or by the name of a public model.

    Returns None if the sizes or the formats are unknown: flags, environment and files may all have chosen other
    formats than the checkpoint's.
    """
    if not {"mxfp4_layers", "kv"} <= set(formats):
        return None
    try:
        return ServedModel.of(read_spec(find_checkpoint(model)), formats)
    except UserError:
        spec = PRESETS.get(Path(model).name)
        return None if spec is None else ServedModel.of(spec, formats)


def describe(bench: BenchResult) -> str:
    """Returns the speeds of the first and the last workload."""
    chosen = [bench.rows[0], bench.rows[-1]] if len(bench.rows) > 1 else bench.rows
    parts = []
    for row in chosen:
        speeds = [f"{name[:2]} {row.series[name].median:.1f} tok/s" for name in SPEEDS if name in row.series]
        parts.append(f"{row.name}: {', '.join(speeds)}")
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
