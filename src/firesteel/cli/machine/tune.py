"""The verb tune: tiles measured on this GPU into the file that --tiles-file reads; measures nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from firesteel.cli.app import app
from firesteel.cli.bench.ops import parse_m
from firesteel.cli.options import AsJson, Device, Model, find_spec, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.device import DeviceSpec, find_device
from firesteel.errors import KernelError, UserError
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.tiles.tuned import TilesError, Tuned, read_earlier, write_tuned
from firesteel.measure.ops import tune as tuning
from firesteel.measure.ops.bench import MEMORY_SHARE
from firesteel.measure.ops.memory import too_large
from firesteel.measure.ops.shapes import Shapes
from firesteel.measure.ops.workloads import Workload, list_workloads
from firesteel.model.spec import ModelSpec

OPS = {op.name: op for op in tuning.OPS}


@app.command()
def tune(
    out: Annotated[
        Path, typer.Option(help="file to write op by op, for --tiles-file; what it has of others stays")
    ] = Path("firesteel-tiles.json"),
    op: Annotated[list[str] | None, typer.Option("--op", help=f"of {', '.join(OPS)}; may be repeated; all")] = None,
    m: Annotated[
        str, typer.Option(help="tokens, as 32,2048; a tile found for M is used for more than M/2 and up to M")
    ] = "16,32,64,2048,8192",
    activation: Annotated[str, typer.Option(help=", ".join(ACTIVATIONS))] = "bf16",
    device: Device = "auto",
    model: Model = "gpt-oss-120b",
    as_json: AsJson = False,
) -> None:
    """Measure tiles and launch options of the Triton kernels on this GPU; takes some minutes, mostly compiling."""
    found = check_gpu(find_device(device))
    earlier = read_out(out, found)
    workloads = list_cases(op, parse_m(m), activation, find_spec(model), found)

    def keep(tuned: Tuned) -> None:
        write_tuned(out, tuned, found)

    with progress_bar("tuning") as report_progress:
        tuner = tuning.tune_ops(workloads, found, progress=report_progress, keep=keep, earlier=earlier)
    if as_json:
        print_json([one.as_dict() for one in tuner.found])
    else:
        show(tune_table(tuner.found, found.name))
    say(f"tiles are in {out}: use them with --tiles-file {out}")


def check_gpu(device: DeviceSpec) -> DeviceSpec:
    if not device.is_cuda:
        raise UserError(
            f"tiles are measured on an NVIDIA GPU, this is {device.name}: run firesteel tune where one is"
        )
    return device


def read_out(path: Path, device: DeviceSpec) -> Tuned:
    """What the file has already; that it can be written is seen before measuring, not after."""
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise UserError(f"--out {path}: name a file in a folder that exists")
    try:
        earlier, why = read_earlier(path, device)
    except TilesError as error:
        raise UserError(f"--out {path} cannot be read, or is a file of something else: name another") from error
    if why:
        say(f"{path} {why}: it is replaced")
    return earlier


def list_cases(
    names: list[str] | None, ms: tuple[int, ...], activation: str, spec: ModelSpec, device: DeviceSpec
) -> dict[str, list[Workload]]:
    """By op, without those that memory has no room for."""
    if activation not in ACTIVATIONS:
        raise UserError(f"--activation {activation}: must be one of {', '.join(ACTIVATIONS)}")
    shapes, wanted = Shapes(spec, device), names or list(OPS)
    if unknown := [name for name in wanted if name not in OPS]:
        raise KernelError(f"--op {unknown[0]}: firesteel tune measures {', '.join(OPS)}")
    found = {name: [one for m in ms for one in list_workloads(OPS[name], m, activation, shapes)] for name in wanted}
    return {name: [one for one in some if not too_large(one, device, MEMORY_SHARE)] for name, some in found.items()}


def tune_table(found: list[tuning.Found], name: str) -> Table:
    table = new_table("what", "M", "chosen", "us before", "us", "gain")
    table.title = f"tiles and launch options on {name}"
    for one in found:
        table.add_row(
            one.what,
            ", ".join(map(str, one.m)),
            one.chosen,
            f"{1e6 * one.before_s:.1f}",
            f"{1e6 * one.chosen_s:.1f}",
            f"{100 * (1 - one.chosen_s / one.before_s):.1f} %",
        )
    return table
