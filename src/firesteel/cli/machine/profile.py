"""The verb profile: where a step's time goes, in the built-in engine or another's trace; measures nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from firesteel.cli.app import app, with_knobs
from firesteel.cli.bench.engine import find_preset, open_model
from firesteel.cli.bench.frontend import WARM_TOKENS, front_end
from firesteel.cli.bench.frontend import measure as measure_front_end
from firesteel.cli.folder import writing_to
from firesteel.cli.options import AsJson, find_spec, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.config import Config, resolve
from firesteel.device import find_device
from firesteel.lab.profile.engine import watch_steps
from firesteel.lab.profile.profile import Profile, profile
from firesteel.lab.trace import read_timeline
from firesteel.lab.report.report import write_report
from firesteel.measure.roofline.roofline import Step, StepCost, step_cost
from firesteel.model.spec import PRESETS, ModelSpec
from firesteel.surroundings import look_around
from firesteel.whole import write_whole

MOST_KERNELS = 25
FRONT_END_TOK_S = 5000.0
FRONT_END_TOKENS = 200


@app.command(name="profile")
@with_knobs
def show_profile(
    knobs: dict[str, Any],
    trace: Annotated[
        Path | None, typer.Argument(help="profile of another engine: PyTorch's JSON or nsys's SQLite")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="requests decoded together")] = 1,
    context: Annotated[int, typer.Option(min=2, help="tokens before the steps")] = 128,
    steps: Annotated[int | None, typer.Option(min=1, help="to profile, or that the trace holds")] = None,
    synthetic: Annotated[str | None, typer.Option(help="random weights of " + " or ".join(PRESETS))] = None,
    front: Annotated[bool, typer.Option(help="also what the HTTP front end costs a token")] = True,
    out: Annotated[Path | None, typer.Option(help="folder for profile.json, report.html and report.md")] = None,
    as_json: AsJson = False,
) -> None:
    """GPU time by category, kernel and layer with gaps and bandwidth; what the host does; on a CPU, time by op."""
    config = resolve({"prefix_caching": False, **knobs}).config
    with nullcontext() if out is None else writing_to(out):
        if trace is not None:
            found = profile_trace(trace, config, "model" in knobs, batch=batch, context=context, steps=steps)
        else:
            found = profile_engine(config, synthetic, batch=batch, context=context, steps=steps or 16, front=front)
        if out is not None:
            say(f"wrote {write_profile(found, config, out, is_ours=trace is None)}")
    if as_json:
        print_json(found.as_dict())
        return
    for table in tables_of(found):
        show(table)
    show(Text(found.in_words()))


def write_profile(found: Profile, config: Config, out: Path, *, is_ours: bool) -> Path:
    """With its surroundings, as a record has them; the page shows them unless they are those of reading a trace."""
    surroundings = dataclasses.asdict(look_around(find_device(config.model.device)))
    write_whole(out / "profile.json", {**found.as_dict(), "surroundings": surroundings})
    shown = {"surroundings": surroundings} if is_ours else {}
    return write_report({"levels": [], "profile": found.as_dict(), **shown}, out)[0]


def profile_trace(
    trace: Path, config: Config, has_model: bool, *, batch: int, context: int, steps: int | None
) -> Profile:
    """With --model, layers and bandwidths too."""
    spec = find_spec(config.model.model) if has_model else None
    return profile(
        read_timeline(trace), source=trace.name, steps=steps, num_layers=None if spec is None else spec.num_layers,
        cost=None if spec is None else find_cost(spec, config, batch, context),
    )  # fmt: skip


def profile_engine(
    config: Config, synthetic: str | None, *, batch: int, context: int, steps: int, front: bool
) -> Profile:
    if synthetic is not None:
        find_preset(synthetic)
    name, loaded = open_model(config, synthetic)
    watched = watch_steps(loaded, batch=batch, context=context, steps=steps)
    host = list(watched.host)
    if front:
        host.append({"stage": "front end (its own core)", "ms": batch * front_end_us() / 1e3})
    return profile(
        watched.slices, source=f"{name} on {loaded.device.name}, batch {batch}, context {context}",
        steps=watched.steps, window_us=watched.window_us, num_layers=loaded.spec.num_layers,
        cost=find_cost(loaded.spec, config, batch, context),
        measured_ms=watched.measured_ms, host=host,
    )  # fmt: skip


def find_cost(spec: ModelSpec, config: Config, batch: int, context: int) -> StepCost:
    kv = "fp8" if config.cache.kv_dtype == "fp8" else "bf16"
    return step_cost(spec, Step(mxfp4_layers=spec.mxfp4_layers, kv=kv, context=context, requests=batch))


def front_end_us() -> float:
    """CPU time of the HTTP server a token, with an engine that costs nothing."""
    with front_end(FRONT_END_TOK_S) as (url, process):
        measure_front_end(url, process, 4, WARM_TOKENS)
        return measure_front_end(url, process, 4, FRONT_END_TOKENS).us_a_token


def tables_of(found: Profile) -> list[Table]:
    tables = [category_table(found), kernel_table(found)]
    if found.layers:
        tables.append(layer_table(found))
    if found.host:
        table = new_table("host", "ms a step")
        for one in found.host:
            table.add_row(one["stage"], f"{one['ms']:.3f}")
        tables.append(table)
    return tables


def category_table(found: Profile) -> Table:
    table = new_table("category", "ms a step", "share", "GB/s")
    table.title = found.source
    for one in found.categories:
        table.add_row(one["category"], f"{one['ms']:.3f}", f"{one['share']:.1%}", _rate(one))
    return table


def kernel_table(found: Profile) -> Table:
    table = new_table("kernel or op", "category", "calls a step", "ms a step", "us a call", "GB/s")
    for one in found.kernels[:MOST_KERNELS]:
        table.add_row(
            Text(one["name"]), one["category"], f"{one['calls']:g}", f"{one['ms']:.3f}", f"{one['us_a_call']:.1f}",
            _rate(one),
        )  # fmt: skip
    return table


def layer_table(found: Profile) -> Table:
    names = sorted({name for one in found.layers for name in one} - {"layer", "ms"})
    table = new_table("layer", "ms a step", *names)
    for one in found.layers:
        table.add_row(one["layer"], f"{one['ms']:.3f}", *(f"{one.get(name, 0.0):.3f}" for name in names))
    return table


def _rate(row: Mapping[str, Any]) -> str:
    return "" if row["gb_s"] is None else f"{row['gb_s']:.3g}"
