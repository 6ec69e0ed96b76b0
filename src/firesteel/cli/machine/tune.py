"""The verb `tune`: measures tiles on this GPU and writes the file for --tiles-file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from firesteel.cli.app import app
from firesteel.cli.bench.ops import parse_m
from firesteel.cli.choices import ACTIVATIONS, TUNED_OPS
from firesteel.cli.options import AsJson, Device, Model, find_spec, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.errors import KernelError, UserError

if TYPE_CHECKING:
    from firesteel.device import DeviceSpec
    from firesteel.kernels.tiles.tuned import Tuned
    from firesteel.measure.ops import tune as tuning
    from firesteel.measure.ops.workloads import OpWorkload
    from firesteel.model.spec import ModelSpec


@app.command()
def tune(
    out: Annotated[
        Path, typer.Option(help="file to write, for --tiles-file; its tiles of other ops are kept")
    ] = Path("firesteel-tiles.json"),
    op: Annotated[
        list[str] | None, typer.Option("--op", help=f"op: {', '.join(TUNED_OPS)}; may be repeated (default: all)")
    ] = None,
    m: Annotated[
        str, typer.Option(help="tokens, such as 32,2048; the tile for M is used from more than M/2 up to M tokens")
    ] = "16,32,64,2048,8192",
    activation: Annotated[str, typer.Option(help="activation format: " + ", ".join(ACTIVATIONS))] = "bf16",
    device: Device = "auto",
    model: Model = "gpt-oss-120b",
    as_json: AsJson = False,
) -> None:
    """Measure tiles and launch options of the Triton kernels on this GPU; takes some minutes, mostly compiling."""
    from firesteel.device import find_device
    from firesteel.kernels.tiles.tuned import write_tuned
    from firesteel.measure.ops import tune as tuning

    gpu = check_gpu(find_device(device))
    earlier = read_out(out, gpu)
    workloads = list_cases(op, parse_m(m), activation, find_spec(model), gpu)

    def keep(tuned: Tuned) -> None:
        write_tuned(out, tuned, gpu)

    with progress_bar("tuning") as report_progress:
        tuner = tuning.tune_ops(workloads, gpu, progress=report_progress, keep=keep, earlier=earlier)
    if as_json:
        print_json([choice.as_dict() for choice in tuner.choices])
    else:
        show(tune_table(tuner.choices, gpu.name))
    say(f"tiles are in {out}: use them with --tiles-file {out}")


def check_gpu(device: DeviceSpec) -> DeviceSpec:
    if not device.is_cuda:
        raise UserError(
            f"tiles are measured on an NVIDIA GPU, this is {device.name}: run firesteel tune on a GPU machine"
        )
    return device


def read_out(path: Path, device: DeviceSpec) -> Tuned:
    """Reads what the file already has; raises before any measuring if it cannot be written."""
    from firesteel.kernels.tiles.tuned import TilesError, read_earlier

    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise UserError(f"--out {path}: must be a file in an existing folder")
    try:
        earlier, why = read_earlier(path, device)
    except TilesError as error:
        raise UserError(f"--out {path} is unreadable or not a file of tiles: choose another file") from error
    if why:
        say(f"{path} {why}: it will be replaced")
    return earlier


def list_cases(
    names: list[str] | None, ms: tuple[int, ...], activation: str, spec: ModelSpec, device: DeviceSpec
) -> dict[str, list[OpWorkload]]:
    """Returns the workloads by op, without those that do not fit into memory."""
    from firesteel.kernels.operands.shapes import ModelShapes
    from firesteel.measure.ops import tune as tuning
    from firesteel.measure.ops.memory import too_large
    from firesteel.measure.ops.sweep import MEMORY_SHARE
    from firesteel.measure.ops.workloads import list_workloads

    if activation not in ACTIVATIONS:
        raise UserError(f"--activation {activation}: must be one of {', '.join(ACTIVATIONS)}")
    ops = {op.name: op for op in tuning.OPS}
    shapes, wanted = ModelShapes(spec, device), names or list(TUNED_OPS)
    if unknown := [name for name in wanted if name not in TUNED_OPS]:
        raise KernelError(f"--op {unknown[0]}: firesteel tune measures {', '.join(TUNED_OPS)}")
    cases: dict[str, list[OpWorkload]] = {}
    for name in wanted:
        workloads = [workload for m in ms for workload in list_workloads(ops[name], m, activation, shapes)]
        cases[name] = [workload for workload in workloads if not too_large(workload, device, MEMORY_SHARE)]
    return cases


def tune_table(choices: list[tuning.TuningChoice], name: str) -> Table:
    table = new_table("what", "M", "chosen", "us before", "us", "gain")
    table.title = f"tiles and launch options on {name}"
    for choice in choices:
        table.add_row(
            choice.what,
            ", ".join(map(str, choice.m)),
            choice.chosen,
            f"{1e6 * choice.before_s:.1f}",
            f"{1e6 * choice.chosen_s:.1f}",
            f"{100 * (1 - choice.chosen_s / choice.before_s):.1f} %",
        )
    return table
