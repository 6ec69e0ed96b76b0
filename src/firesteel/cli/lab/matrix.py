"""The verb `lab matrix`: the product of gates as a table and a heat map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from firesteel.atomic import write_atomically
from firesteel.cli.bench.options import parse_numbers
from firesteel.cli.folder import writing_to
from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.config import hide_secrets
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.path.slots import SlotState, SlotTable
from firesteel.lab.verdict import Verdict

if TYPE_CHECKING:
    from firesteel.lab.matrix.result import CellOutcome, Matrix, MatrixResult


Engine = Annotated[str, typer.Option(help="firesteel, vllm, sglang, llamacpp, or a command line with {port}")]
ServedName = Annotated[str, typer.Option(help="checkpoint folder, name in the local cache, or kindling")]


@lab.command(name="matrix")
def lab_matrix(
    gates: Annotated[
        list[str] | None,
        typer.Option(
            help="GATE=VALUE,VALUE, env:VARIABLE=VALUE,VALUE or a name alone: with and without it; repeatable, all "
            "multiply. A value with a comma is JSON or in quotes, with its own --gates GATE=VALUE"
        ),
    ] = None,
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="flags for every cell's server")
    ] = None,
    gates_file: Annotated[
        Path | None, typer.Option(help="TOML file of named configurations and gates, such as examples/matrix.toml")
    ] = None,
    engine: Engine = "firesteel",
    model: ServedName = "kindling",
    path: Annotated[
        str, typer.Option(help="kernel path that cells must run, unless their configuration says")
    ] = "",
    expect: Annotated[str, typer.Option(help="values of slots of the kernel path, such as moe=cutlass")] = "",
    reference: Annotated[str, typer.Option(help="recorded reference for level 2 of every cell")] = "",
    reference_url: Annotated[str, typer.Option(help="reference server for level 2 of every cell")] = "",
    formats: Annotated[
        str, typer.Option(help="formats that the servers hold, such as moe=mxfp4,dense=q8_0, for roofline shares")
    ] = "",
    full: Annotated[
        bool, typer.Option("--full", help="run the whole benchmark and level 2 in every cell, not parts of them")
    ] = False,
    pp: Annotated[str, typer.Option(help="tokens per prompt, such as 512,2048 (default: 128)")] = "",
    tg: Annotated[str, typer.Option(help="tokens per answer (default: 32)")] = "",
    depths: Annotated[str, typer.Option(help="tokens of context before the prompt (default: 0)")] = "",
    runs: Annotated[int | None, typer.Option(help="counted runs of each workload (default: 3)")] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="measure cells whose kernel path failed too; they have no rank")
    ] = False,
    allow_unjudged: Annotated[
        bool, typer.Option("--allow-unjudged", help="exit code 0, not 3, if nothing failed but not all was judged")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="measure cells without a rank again")] = False,
    cell_s: Annotated[float, typer.Option(help="time limit of a cell in seconds")] = 3600.0,
    out: Annotated[Path, typer.Option(help="folder for cells and report; a second call continues")] = Path(
        "firesteel-matrix"
    ),
    as_json: AsJson = False,
) -> None:
    """Measure the product of gates and configurations, each cell as a lab run with its own server.

    The exit code is 1 if a cell failed, and 3 if a kernel path or the answers could not be judged.
    """
    from firesteel.lab.matrix.gates_file import GatesFile, choose_gates, read_gates_file
    from firesteel.lab.matrix.result import Matrix
    from firesteel.lab.spec_check import check_matrix

    file = GatesFile() if gates_file is None else read_gates_file(gates_file, engine=engine)
    chosen = choose_gates(gates or (), file, engine=engine)
    matrix = Matrix(
        gates=chosen,
        configurations=file.list_chosen(chosen),
        engine=engine,
        model=model,
        flags=(*file.flags, *(flags or ())),
        environment=file.environment,
        plan=make_plan(full, runs, pp=pp, tg=tg, depths=depths),
        quick=not full,
        path=path,
        expect=expect,
        reference=reference,
        reference_url=reference_url,
        formats=formats,
        keep_going=keep_going,
        cell_s=cell_s,
    )
    check_matrix(matrix)
    with writing_to(out):
        measured, page = measure_and_report(matrix, out, again=again)
    if as_json:
        print_json(measured.as_dict())
    else:
        show(matrix_table(measured))
        say(f"{measured.words}; heat map: {page}")
    if measured.verdict is Verdict.FAILED or not allow_unjudged:
        raise typer.Exit(measured.verdict.exit_code)


def measure_and_report(matrix: Matrix, out: Path, *, again: bool) -> tuple[MatrixResult, Path]:
    """Returns the result and the path of the page."""
    from firesteel.device import find_device
    from firesteel.lab.engine_info import EngineInfo
    from firesteel.lab.matrix.matrix import CELLS, run_matrix
    from firesteel.lab.report.report import write_report
    from firesteel.lab.result import RESULT, LabResult
    from firesteel.lab.surroundings import StatedSurroundings

    measured = run_matrix(matrix, out / CELLS, on_progress=say, again=again)
    result = LabResult(
        engine=EngineInfo(name=hide_secrets((matrix.engine,))[0], model=matrix.model),
        matrix=measured,
        surroundings=StatedSurroundings.now(find_device()),
    )
    write_atomically(out / RESULT, result.as_dict())
    return measured, write_report(result, out)[0]


def make_plan(full: bool, runs: int | None, **sizes: str) -> BenchPlan:
    """Returns the workloads of a cell; the table shows the first, the cell's own report all."""
    from firesteel.lab.matrix.result import SMALL

    given = {name: parse_numbers(f"--{name}", text, 0, None) for name, text in sizes.items() if text}
    return (BenchPlan() if full else SMALL).with_settings(runs=runs, **given)


def matrix_table(measured: MatrixResult) -> Table:
    """Builds a row per cell; the best value of each figure is highlighted."""
    gates, figures = list(measured.gates), measured.figures
    units = (f"{name} ({unit})" for name, unit in figures.items())
    table = new_table("rank", *gates, "status", *units, "slots", "reason")
    best = {name: measured.find_best(name) for name in figures}
    for cell in measured.cells:
        values = {name: cell.figures.get(name) for name in figures}
        texts = [
            Text("" if value is None else f"{value:.4g}", find_style(cell, value == best[name]))
            for name, value in values.items()
        ]
        chosen = (Text(cell.gates[gate]) for gate in gates)
        rank = "" if cell.rank is None else str(cell.rank)
        table.add_row(rank, *chosen, status_text(cell), *texts, in_short(cell.slots), Text(cell.reason))
    return table


def status_text(cell: CellOutcome) -> Text:
    """Returns the verdict of a cell that was measured, else why it was not."""
    from firesteel.cli.lab.run_table import STYLES
    from firesteel.lab.matrix.result import DONE

    return Text(cell.verdict.value if cell.status == DONE else cell.status, STYLES[cell.verdict])


def find_style(cell: CellOutcome, is_best: bool) -> str:
    if cell.unranked:
        return "dim"
    return "bold green" if is_best else ""


def in_short(slots: SlotTable | None) -> Text:
    """Returns the slots that were seen or had to be, coloured by their verdicts."""
    from firesteel.cli.lab.run_table import STYLES

    rows = [row for row in slots.rows if row.counts and row.state is not SlotState.NOT_APPLICABLE] if slots else []
    return Text(" ").join(Text(f"{row.slot}={row.value or '?'}", STYLES[row.verdict]) for row in rows)
