"""The verb bench: ops timed at a model's shapes; times nothing itself."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.app import app
from firesteel.cli.options import (
    AsJson,
    Device,
    Model,
    Ops,
    Required,
    choose_ops,
    exit_code_one,
    find_spec,
    print_json,
)
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import bench_table, say, show
from firesteel.config import resolve
from firesteel.device import DeviceSpec, find_device
from firesteel.errors import UserError
from firesteel.kernels.op.requirement import parse_requirements
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.measure.ops import bench as benchmark
from firesteel.measure.ops.outcome import Ceilings, OpOutcome
from firesteel.plot import check_libraries, plot_ops
from firesteel.surroundings import look_again

DEFAULT_M = {True: "1,2,...,8192", False: "1"}  # by is_cuda
MOST_M = 16384
bench = typer.Typer(
    no_args_is_help=True, help="Time ops against a ceiling measured in the same run, or the engine."
)
app.add_typer(bench, name="bench")


@bench.command(name="ops")
def bench_ops(
    op: Ops = None,
    m: Annotated[str | None, typer.Option(help="tokens, as 1,64 or 1,2,...,8192 (doubling)")] = None,
    implementation: Annotated[
        list[str] | None, typer.Option(help="as triton or triton:gemm; may be repeated; all but a GPU's reference")
    ] = None,
    activation: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(ACTIVATIONS)}; may be repeated; bf16")
    ] = None,
    require: Required = None,
    out: Annotated[Path, typer.Option(help="folder for records and the plot")] = Path("firesteel-bench"),
    plot: Annotated[bool, typer.Option(help="draw ops.html and ops.png")] = True,
    device: Device = "auto",
    model: Model = "gpt-oss-120b",
    as_json: AsJson = False,
) -> None:
    """Time each implementation at a model's shapes with a cold cache: GB/s, TFLOP/s and share of the ceiling."""
    found, required = find_device(device), parse_requirements(",".join(require or []))
    plan = benchmark.OpsSweep(
        spec=find_spec(model), ops=choose_ops(op, *required), ms=parse_m(m or DEFAULT_M[found.is_cuda]),
        activations=_activations(activation), implementations=tuple(implementation or ()),
    )  # fmt: skip
    if plot:
        check_libraries()
    benchmark.check_implementations(plan, found)
    with exit_code_one():
        benchmark.check_required(plan, found, required)
    check_folder(out)
    outcomes, ceilings = _measure(plan, found, out, required)
    if as_json:
        print_json([one.as_dict() for one in outcomes])
    else:
        show(bench_table(outcomes, ceilings, found.name))
    say(f"records are in {out}")
    if plot and any(one.figures for one in outcomes):
        page, picture = plot_ops(outcomes, out, f"{model} ops on {found.name}")
        say(f"plot: {page} and {picture}")
    with exit_code_one():
        benchmark.check_measured(outcomes, required)
    if any(one.failed for one in outcomes):
        raise typer.Exit(1)


def _measure(
    plan: benchmark.OpsSweep, device: DeviceSpec, out: Path, required: benchmark.Required
) -> tuple[list[OpOutcome], Ceilings]:
    """Each record is saved as soon as it is made. Commit and packages are looked up once, the GPU's state anew for
    each workload: clocks and heat change in a long run."""
    say(f"measuring the ceilings of {device.name}")
    ceilings = benchmark.measure_ceilings(device)
    records = ceilings.records(device, resolve().config)
    for record in records:
        record.save(out)
    outcomes: list[OpOutcome] = []
    around, of = records[0], None
    with progress_bar("measuring") as report_progress:
        for outcome in benchmark.bench_ops(plan, device, ceilings, required=required, progress=report_progress):
            outcomes.append(outcome)
            if outcome.figures is None:
                continue
            if outcome.workload != of:
                around, of = replace(around, surroundings=look_again(around.surroundings, device)), outcome.workload
            outcome.record(around).save(out)
    return outcomes, ceilings


def check_folder(folder: Path) -> None:
    """Makes it; raises unless files can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"--out {folder}: cannot write there: {error.strerror}; name a folder that you may write to"
        ) from error


def parse_m(text: str) -> tuple[int, ...]:
    """Of "1,64,1000" or "1,2,...,8192": dots double the number before them until the one after."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    found: list[int] = []
    for number, word in enumerate(words):
        if word == "..." and found and number + 1 < len(words) and words[number + 1].isdigit():
            while 2 * found[-1] < int(words[number + 1]):
                found.append(2 * found[-1])
        elif re.fullmatch(r"[0-9]+", word) and 1 <= int(word) <= MOST_M:
            found.append(int(word))
        else:
            raise UserError(f"--m {text}: wants numbers from 1 to {MOST_M}, as 1,64 or 1,2,...,8192, not {word!r}")
    if not found:
        raise UserError("--m is empty: name at least one number of tokens")
    return tuple(dict.fromkeys(found))


def _activations(given: list[str] | None) -> tuple[str, ...]:
    for one in given or []:
        if one not in ACTIVATIONS:
            raise UserError(f"--activation {one}: must be one of {', '.join(ACTIVATIONS)}")
    return tuple(dict.fromkeys(given or ["bf16"]))
