"""The verb `bench ops`: ops timed at the shapes of a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firesteel.cli.bench.options import RECORDS, OutAndPlot, bench, check_folder
from firesteel.cli.choices import BENCH_ACTIVATIONS
from firesteel.cli.options import (
    AsJson,
    Device,
    Model,
    Ops,
    Required,
    choose_ops,
    failing,
    find_spec,
    print_json,
)
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import bench_table, say, show
from firesteel.config import resolve
from firesteel.errors import UserError
from firesteel.exit_code import ExitCode

if TYPE_CHECKING:
    from firesteel.device import DeviceSpec
    from firesteel.measure.ops.outcome import Ceilings, OpOutcome
    from firesteel.measure.ops.sweep import OpsSweep
    from firesteel.measure.ops.sweep import Required as RequiredOps


DEFAULT_M = {True: "1,2,...,8192", False: "1"}  # keyed by is_cuda
MOST_M = 16384


@bench.command(name="ops")
def bench_ops(
    op: Ops = None,
    m: Annotated[
        str | None, typer.Option(help="numbers of tokens, for example 1,64 or 1,2,...,8192 (doubling)")
    ] = None,
    implementation: Annotated[
        list[str] | None,
        typer.Option(
            help="triton, triton:gemm and so on; may be repeated (default: all, without the reference on a GPU)"
        ),
    ] = None,
    activation: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(BENCH_ACTIVATIONS)}; may be repeated (default: bf16)")
    ] = None,
    require: Required = None,
    out: OutAndPlot = RECORDS,
    plot: Annotated[bool, typer.Option(help="draw ops.html and ops.png")] = True,
    device: Device = "auto",
    model: Model = "gpt-oss-120b",
    as_json: AsJson = False,
) -> None:
    """Time each implementation at a model's shapes with a cold cache: GB/s, TFLOP/s and share of the ceiling."""
    from firesteel.device import find_device
    from firesteel.kernels.op.requirement import parse_requirements
    from firesteel.measure.ops.sweep import OpsSweep, check_implementations, check_measured, check_required
    from firesteel.plot import check_libraries, plot_ops

    target, required = find_device(device), parse_requirements(",".join(require or []))
    sweep = OpsSweep(
        spec=find_spec(model),
        ops=choose_ops(op, *required),
        ms=parse_m(m or DEFAULT_M[target.is_cuda]),
        activations=_activations(activation),
        implementations=tuple(implementation or ()),
    )
    if plot:
        check_libraries()
    check_implementations(sweep, target)
    with failing():
        check_required(sweep, target, required)
    check_folder(out)
    outcomes, ceilings = _measure(sweep, target, out, required)
    if as_json:
        print_json([outcome.as_dict() for outcome in outcomes])
    else:
        show(bench_table(outcomes, ceilings, target.name))
    say(f"records are in {out}")
    if plot and any(outcome.figures for outcome in outcomes):
        page, picture = plot_ops(outcomes, out, f"{model} ops on {target.name}")
        say(f"plot: {page} and {picture}")
    with failing():
        check_measured(outcomes, required)
    if any(outcome.failed for outcome in outcomes):
        raise typer.Exit(ExitCode.FAILED)


def _measure(
    sweep: OpsSweep, device: DeviceSpec, out: Path, required: RequiredOps
) -> tuple[list[OpOutcome], Ceilings]:
    from firesteel.measure.ops import bench as benchmark

    say(f"measuring the ceilings of {device.name}")
    ceilings = benchmark.measure_ceilings(device)
    around = benchmark.save_ceilings(ceilings, device, resolve().config, out)
    with progress_bar("measuring") as report_progress:
        outcomes = benchmark.bench_ops(sweep, device, ceilings, required=required, progress=report_progress)
        return list(benchmark.saved(outcomes, around, device, out)), ceilings


def parse_m(text: str) -> tuple[int, ...]:
    """Parses "1,64,1000" or "1,2,...,8192", where dots double the number before them up to the one after them."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    numbers: list[int] = []
    for place, word in enumerate(words):
        if word == "..." and numbers and place + 1 < len(words) and words[place + 1].isdigit():
            while 2 * numbers[-1] < int(words[place + 1]):
                numbers.append(2 * numbers[-1])
        elif re.fullmatch(r"[0-9]+", word) and 1 <= int(word) <= MOST_M:
            numbers.append(int(word))
        else:
            raise UserError(
                f"--m {text}: expected numbers from 1 to {MOST_M}, for example 1,64 or 1,2,...,8192, got {word!r}"
            )
    if not numbers:
        raise UserError("--m is empty: name at least one number of tokens")
    return tuple(dict.fromkeys(numbers))


def _activations(given: list[str] | None) -> tuple[str, ...]:

    for activation in given or []:
        if activation not in BENCH_ACTIVATIONS:
            raise UserError(f"--activation {activation}: must be one of {', '.join(BENCH_ACTIVATIONS)}")
    return tuple(dict.fromkeys(given or ["bf16"]))
