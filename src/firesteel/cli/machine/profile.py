"""The verb `profile`: where a step's time goes, in the built-in engine or in another engine's trace."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from firesteel.atomic import write_atomically
from firesteel.cli.app import app, with_settings
from firesteel.cli.choices import MODELS
from firesteel.cli.folder import writing_to
from firesteel.cli.options import AsJson, find_spec, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.config import Config, resolve
from firesteel.lab.trace import read_timeline

if TYPE_CHECKING:
    from firesteel.lab.profile.profile import Profile
    from firesteel.measure.roofline.roofline import StepCost
    from firesteel.model.spec import ModelSpec


MAX_KERNELS = 25
FRONT_END_TOK_S = 5000.0
FRONT_END_TOKENS = 200


@app.command(name="profile")
@with_settings
def show_profile(
    settings: dict[str, Any],
    trace: Annotated[
        Path | None, typer.Argument(help="profile of another engine: PyTorch's JSON or nsys's SQLite")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="requests decoded together")] = 1,
    context: Annotated[int, typer.Option(min=2, help="context length in tokens before the steps")] = 128,
    steps: Annotated[
        int | None, typer.Option(min=1, help="steps to profile or in the trace (default: 16 or guessed)")
    ] = None,
    synthetic: Annotated[str | None, typer.Option(help="random weights of " + " or ".join(MODELS))] = None,
    front: Annotated[bool, typer.Option(help="also measure the HTTP front end per token")] = True,
    out: Annotated[Path | None, typer.Option(help="folder for profile.json, report.html and report.md")] = None,
    as_json: AsJson = False,
) -> None:
    """Show GPU time by category, kernel and layer with gaps and bandwidth, and host time; on a CPU, time by op."""
    config = resolve({"prefix_caching": False, **settings}).config
    with nullcontext() if out is None else writing_to(out):
        if trace is not None:
            profile = profile_trace(trace, config, "model" in settings, batch=batch, context=context, steps=steps)
        else:
            profile = profile_engine(
                config, synthetic, batch=batch, context=context, steps=steps or 16, front=front
            )
        if out is not None:
            say(f"wrote {write_profile(profile, config, out, is_ours=trace is None)}")
    if as_json:
        print_json(profile.as_dict())
        return
    for table in make_tables(profile):
        show(table)
    show(Text(profile.in_words()))


def write_profile(profile: Profile, config: Config, out: Path, *, is_ours: bool) -> Path:
    """Writes profile.json and the report; the report has no surroundings if a trace was only read here."""
    from firesteel.device import find_device
    from firesteel.lab.report.report import write_report
    from firesteel.lab.result import LabResult
    from firesteel.lab.surroundings import StatedSurroundings

    surroundings = StatedSurroundings.now(find_device(config.model.device))
    write_atomically(out / "profile.json", {**profile.as_dict(), "surroundings": surroundings.as_dict()})
    return write_report(LabResult(profile=profile, surroundings=surroundings if is_ours else None), out)[0]


def profile_trace(
    trace: Path, config: Config, has_model: bool, *, batch: int, context: int, steps: int | None
) -> Profile:
    """Reads a trace; with --model the profile also has layers and bandwidths."""
    from firesteel.lab.profile.profile import compute_profile

    spec = find_spec(config.model.model) if has_model else None
    return compute_profile(
        read_timeline(trace),
        source=trace.name,
        steps=steps,
        num_layers=None if spec is None else spec.num_layers,
        cost=None if spec is None else find_cost(spec, config, batch, context),
    )


def profile_engine(
    config: Config, synthetic: str | None, *, batch: int, context: int, steps: int, front: bool
) -> Profile:
    from firesteel.cli.bench.model import find_preset, open_model
    from firesteel.lab.profile.engine import profile_steps
    from firesteel.lab.profile.profile import HostTime, compute_profile

    if synthetic is not None:
        find_preset(synthetic)
    name, loaded = open_model(config, synthetic)
    profiled = profile_steps(loaded, batch=batch, context=context, steps=steps)
    host = list(profiled.host)
    if front:
        host.append(HostTime(stage="front end (its own core)", ms=batch * front_end_us() / 1e3))
    return compute_profile(
        profiled.slices,
        source=f"{name} on {loaded.device.name}, batch {batch}, context {context}",
        steps=profiled.steps,
        window_us=profiled.window_us,
        num_layers=loaded.spec.num_layers,
        cost=find_cost(loaded.spec, config, batch, context),
        measured_ms=profiled.measured_ms,
        host=host,
    )


def find_cost(spec: ModelSpec, config: Config, batch: int, context: int) -> StepCost:
    from firesteel.measure.roofline.roofline import StepShape, step_cost

    kv = "fp8" if config.cache.kv_dtype == "fp8" else "bf16"
    return step_cost(spec, StepShape(mxfp4_layers=spec.mxfp4_layers, kv=kv, context=context, requests=batch))


def front_end_us() -> float:
    """Measures the CPU time of the HTTP server per token, with an engine that takes none."""
    from firesteel.server.stub.bench import WARM_TOKENS, front_end
    from firesteel.server.stub.bench import measure_round as measure_front_end

    with front_end(FRONT_END_TOK_S) as (url, process):
        measure_front_end(url, process, 4, WARM_TOKENS)
        return measure_front_end(url, process, 4, FRONT_END_TOKENS).us_a_token


def make_tables(profile: Profile) -> list[Table]:
    tables = [category_table(profile), kernel_table(profile)]
    if profile.layers:
        tables.append(layer_table(profile))
    if profile.host:
        table = new_table("host", "ms per step")
        for row in profile.host:
            table.add_row(row.stage, f"{row.ms:.3f}")
        tables.append(table)
    return tables


def category_table(profile: Profile) -> Table:
    table = new_table("category", "ms per step", "share", "GB/s")
    table.title = profile.source
    for row in profile.categories:
        share = "" if row.share is None else f"{row.share:.1%}"
        table.add_row(row.category, f"{row.ms:.3f}", share, _rate(row.gb_s))
    return table


def kernel_table(profile: Profile) -> Table:
    table = new_table("kernel or op", "category", "calls per step", "ms per step", "us per call", "GB/s")
    for row in profile.kernels[:MAX_KERNELS]:
        calls, ms, us = f"{row.calls:g}", f"{row.ms:.3f}", f"{row.us_a_call:.1f}"
        table.add_row(Text(row.name), row.category, calls, ms, us, _rate(row.gb_s))
    return table


def layer_table(profile: Profile) -> Table:
    names = sorted({name for row in profile.layers for name in row.categories})
    table = new_table("layer", "ms per step", *names)
    for row in profile.layers:
        values = (f"{row.categories.get(name, 0.0):.3f}" for name in names)
        table.add_row(row.layer, f"{row.ms:.3f}", *values)
    return table


def _rate(gb_s: float | None) -> str:
    return "" if gb_s is None else f"{gb_s:.3g}"
