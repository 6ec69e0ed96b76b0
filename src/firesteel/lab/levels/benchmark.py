"""Level 4: speeds and latencies by llama-benchy's definitions, with records; times nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firesteel.config import Config, resolve
from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.bench.bench import BenchResult, measure
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.bench.roof import Served, find_roof
from firesteel.lab.level import Checks, LevelResult
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import Order
from firesteel.measure.record import Record
from firesteel.model.spec import PRESETS, read_spec

SPEEDS = ("pp_tok_s", "tg_tok_s")
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")


def run_benchmark(target: Target, order: Order, device: DeviceSpec) -> LevelResult:
    checks = Checks()
    with target.step("benchmark"):
        result = run_bench(target, order, device)
    if target.server is not None and result.failures:
        target.server.check()
    checks.figures["bench"] = result.as_dict()
    failures = result.failures
    checks.add("requests", not failures, "; ".join(failures[:3]) or f"{len(result.rows)} workloads, none failed")
    save_records(target, result, device, resolve().config)
    return checks.result("4", in_words(result))


def run_bench(target: Target, order: Order, device: DeviceSpec) -> BenchResult:
    server, ledger = target.server, target.read_ledger() or {}
    return measure(
        target.api.url, target.api.model, choose_plan(order), api_key=target.api.api_key,
        timeout_s=target.api.timeout_s, served=find_served(target.model, find_formats(ledger, target, order)),
        roof=find_roof(ledger.get("device", device.name)),
        pid=None if server is None else server.family.leader,
        startup_s=None if server is None else server.startup_s,
        progress=lambda done, count, name: note(target, done, count, name),
    )  # fmt: skip


def note(target: Target, done: int, count: int, name: str) -> None:
    """For the one who watches, and for the diagnosis of a server that is lost there."""
    target.tell(f"workload {done} of {count}: {name}")
    if target.server is not None:
        target.server.step = f"benchmark, {name}" if name else "benchmark"


def choose_plan(order: Order) -> BenchPlan:
    return BenchPlan.quick() if order.quick else BenchPlan()


def find_formats(ledger: Mapping[str, Any], target: Target, order: Order) -> Any:
    """As a firesteel states them. A vLLM or SGLang that was started here holds the checkpoint's, and its keys and
    values as its flag says, unless it was told to quantise."""
    if "formats" in ledger or target.server is None or target.kind not in ("vllm", "sglang"):
        return ledger.get("formats")
    if order.flag("quantization"):
        return None
    is_fp8 = any("fp8" in value for value in order.flag("kv-cache-dtype"))
    return {"mxfp4_layers": "", "kv": "float8" if is_fp8 else "bfloat16"}


def find_served(model: str, formats: Any) -> Served | None:
    """By its checkpoint, or by its name where that is public.

    None of a model whose sizes are not known here, or of a server that does not state in which formats it holds it:
    flags, environment and files may all have chosen others than the checkpoint's.
    """
    if not isinstance(formats, Mapping) or not {"mxfp4_layers", "kv"} <= set(formats):
        return None
    try:
        return Served.of(read_spec(find_checkpoint(model)), formats)
    except UserError:
        spec = PRESETS.get(Path(model).name)
        return None if spec is None else Served.of(spec, formats)


def in_words(result: BenchResult) -> str:
    """The first and the last workload."""
    chosen = [result.rows[0], result.rows[-1]] if len(result.rows) > 1 else result.rows
    parts = []
    for row in chosen:
        speeds = [f"{name[:2]} {row.series[name].median:.1f} tok/s" for name in SPEEDS if name in row.series]
        parts.append(f"{row.name}: {', '.join(speeds)}")
    return "; ".join(parts)


def save_records(target: Target, result: BenchResult, device: DeviceSpec, config: Config) -> None:
    """One a workload and speed."""
    for row in result.rows:
        for name in SPEEDS:
            series = row.series.get(name)
            if series is None:
                continue
            Record.now(
                device, config, name=f"lab {name} {row.name}", unit="tok/s", samples=series.values,
                warmups=result.plan.warmups, seed=result.plan.seed, startup_s=result.startup_s,
                parameters={"engine": target.kind, "model": result.model, "url": result.url},
            ).save(target.folder / "records")  # fmt: skip
