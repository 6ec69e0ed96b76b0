"""The verb `profile`: where the time goes in the built-in engine, in a running server, or in a trace."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from firesteel.atomic import write_atomically
from firesteel.cli.app import app, with_settings
from firesteel.cli.choices import MODELS
from firesteel.cli.folder import writing_to
from firesteel.cli.options import AsJson, find_spec, print_json
from firesteel.cli.tables import say, show
from firesteel.config import Config, resolve
from firesteel.errors import UserError
from firesteel.lab.trace import Slice, cut, read_timeline

if TYPE_CHECKING:
    from firesteel.lab.profile.recording import RecordingPlan


if TYPE_CHECKING:
    from firesteel.lab.profile.profile import Profile
    from firesteel.measure.roofline.roofline import StepCost
    from firesteel.model.spec import ModelSpec


FRONT_END_TOK_S = 5000.0
FRONT_END_TOKENS = 200
STEPS, SECONDS = 16, 5.0


@app.command(name="profile")
@with_settings
def show_profile(
    settings: dict[str, Any],
    trace: Annotated[
        Path | None, typer.Argument(help="profile of another engine: PyTorch's JSON or nsys's SQLite")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="running server whose own profiler records a trace: vLLM or SGLang")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help=f"length of that recording (default: {SECONDS:g})")
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(help="folder of this machine in which the traces of the server behind --url appear"),
    ] = None,
    prompt: Annotated[bool, typer.Option("--prompt/--decode", help="profile prompts, or decoding steps")] = False,
    batch: Annotated[int, typer.Option(min=1, help="requests decoded together, or prompts at once")] = 1,
    context: Annotated[int, typer.Option(min=2, help="tokens of each prompt")] = 128,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help=f"steps or prompts to profile, or in the trace (default: {STEPS}, or guessed)"),
    ] = None,
    start: Annotated[
        float | None, typer.Option("--from", min=0, help="start of a window of the trace, in seconds")
    ] = None,
    end: Annotated[float | None, typer.Option("--to", min=0, help="end of that window, in seconds")] = None,
    against: Annotated[
        Path | None, typer.Option(help="earlier trace or profile.json to show the difference from")
    ] = None,
    synthetic: Annotated[str | None, typer.Option(help="random weights of " + " or ".join(MODELS))] = None,
    front: Annotated[bool, typer.Option(help="also measure the HTTP front end per token")] = True,
    out: Annotated[Path | None, typer.Option(help="folder for profile.json, report.html and report.md")] = None,
    as_json: AsJson = False,
) -> None:
    """Show GPU time by category, kernel and layer with gaps and bandwidth, and host time; on a CPU, time by op."""
    from firesteel.cli.machine.profile_tables import difference_tables, make_tables
    from firesteel.lab.profile.difference import compute_difference
    from firesteel.lab.profile.recording import RecordingPlan
    from firesteel.lab.servers.commands import find_key

    check_flags(trace, url, {"--seconds": seconds, "--traces": traces}, {"--from": start, "--to": end})
    config = resolve({"prefix_caching": False, **settings}).config
    spec = find_spec(config.model.model) if "model" in settings and (trace or url) else None
    cost = None if spec is None or prompt else find_cost(spec, config, batch, context)
    with nullcontext() if out is None else writing_to(out):
        if trace is not None:
            slices = read_timeline(trace)
            profile = profile_slices(slices, trace.name, spec, cost, steps=steps, window=(start, end))
        elif url is not None:
            plan = RecordingPlan(
                url=url,
                seconds=seconds or SECONDS,
                reads_prompts=prompt,
                batch=batch,
                context=context,
                folder=traces,
                api_key=find_key(()),
            )
            slices, source = record(plan)
            profile = profile_slices(slices, source, spec, cost, steps=steps, window=(start, end))
        else:
            profile = profile_engine(
                config, synthetic, prompt=prompt, batch=batch, context=context, steps=steps or STEPS, front=front
            )
        if out is not None:
            is_ours = trace is None and url is None
            say(f"wrote {write_profile(profile, config, out, is_ours=is_ours)}")
    difference = None if against is None else compute_difference(read_profile(against), profile)
    if as_json:
        print_json(profile.as_dict() if difference is None else difference.as_dict())
        return
    for table in make_tables(profile):
        show(table)
    show(Text(profile.in_words()))
    if difference is not None:
        for table in difference_tables(difference):
            show(table)
        show(Text(difference.in_words()))


def check_flags(
    trace: Path | None, url: str | None, of_recordings: dict[str, Any], of_traces: dict[str, Any]
) -> None:
    """Raises for flags that would have no effect."""
    if trace is not None and url is not None:
        raise UserError("name a trace, or a server with --url, not both")
    for flags, is_used, needed in (
        (of_recordings, url is not None, "--url"),
        (of_traces, url is not None or trace is not None, "a trace or --url"),
    ):
        if not is_used and (given := [name for name, value in flags.items() if value is not None]):
            raise UserError(f"{', '.join(given)} without {needed} has no effect: add it, or leave the flag out")


def record(plan: RecordingPlan) -> tuple[list[Slice], str]:
    """Returns the timeline of a recording, and what it shows."""
    from firesteel.lab.profile.recording import record_profile

    recording = record_profile(plan, say)
    say(f"trace: {recording.path}")
    if recording.others:
        say(f"not shown: {len(recording.others)} traces of its other processes beside it")
    doing = "prompts" if plan.reads_prompts else "decoding"
    return recording.slices, f"{recording.engine or plan.url}, {doing}, batch {plan.batch}, context {plan.context}"


def profile_slices(
    slices: list[Slice],
    source: str,
    spec: ModelSpec | None,
    cost: StepCost | None,
    *,
    steps: int | None,
    window: tuple[float | None, float | None],
) -> Profile:
    """Computes the profile of a trace; with --model it also has layers and, of decoding steps, bandwidths."""
    from firesteel.lab.profile.profile import compute_profile

    window_us = None
    if window != (None, None):
        slices, window_us = cut(slices, *window)
    return compute_profile(
        slices,
        source=source,
        steps=steps,
        window_us=window_us,
        num_layers=None if spec is None else spec.num_layers,
        cost=cost,
    )


def read_profile(path: Path) -> Profile:
    """Reads a profile.json of this verb, or a trace."""
    from firesteel.lab.profile.profile import compute_profile, parse_profile

    if path.suffix == ".json" and path.is_file():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{path} is neither a profile.json nor a trace: {error}") from error
        if isinstance(content, dict) and "categories" in content:
            kept = ("surroundings", "sum_ms", "words")
            return parse_profile({name: value for name, value in content.items() if name not in kept})
    return compute_profile(read_timeline(path), source=path.name)


def write_profile(profile: Profile, config: Config, out: Path, *, is_ours: bool) -> Path:
    """Writes profile.json and the report; the report has no surroundings if a trace was only read here."""
    from firesteel.device import find_device
    from firesteel.lab.report.report import write_report
    from firesteel.lab.result import LabResult
    from firesteel.lab.surroundings import StatedSurroundings

    surroundings = StatedSurroundings.now(find_device(config.model.device))
    write_atomically(out / "profile.json", {**profile.as_dict(), "surroundings": surroundings.as_dict()})
    return write_report(LabResult(profile=profile, surroundings=surroundings if is_ours else None), out)[0]


def profile_engine(
    config: Config, synthetic: str | None, *, prompt: bool, batch: int, context: int, steps: int, front: bool
) -> Profile:
    from firesteel.cli.bench.model import find_preset, open_model
    from firesteel.lab.profile.engine import profile_prompts, profile_steps
    from firesteel.lab.profile.profile import HostTime, compute_profile

    if synthetic is not None:
        find_preset(synthetic)
    name, loaded = open_model(config, synthetic)
    if prompt:
        profiled = profile_prompts(loaded, batch=batch, length=context, rounds=steps)
    else:
        profiled = profile_steps(loaded, batch=batch, context=context, steps=steps)
    host = list(profiled.host)
    if front and not prompt:
        host.append(HostTime(stage="front end (its own core)", ms=batch * front_end_us() / 1e3))
    is_one_step = profiled.engine_steps == 1.0  # layers of several steps cannot be told apart
    shape = f"{batch} prompts of {context} tokens" if prompt else f"batch {batch}, context {context}"
    return compute_profile(
        profiled.slices,
        source=f"{name} on {loaded.device.name}, {shape}",
        unit=("prompt" if batch == 1 else "round") if prompt else "step",
        steps=profiled.steps,
        window_us=profiled.window_us,
        num_layers=loaded.spec.num_layers if is_one_step or not prompt else None,
        cost=None if prompt else find_cost(loaded.spec, config, batch, context),
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
