"""The verb `lab matrix`: the product of gates as a table and a heat map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from firesteel.atomic import write_atomically
from firesteel.cli.folder import writing_to
from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.config import hide_secrets
from firesteel.exit_code import ExitCode
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.matrix.gates import parse_gates

if TYPE_CHECKING:
    from firesteel.lab.matrix.result import MatrixResult


Engine = Annotated[str, typer.Option(help="firesteel, vllm, sglang, llamacpp, or a command line with {port}")]
ServedName = Annotated[str, typer.Option(help="checkpoint folder, name in the local cache, or kindling")]


@lab.command(name="matrix")
def lab_matrix(
    gates: Annotated[
        list[str], typer.Option(help="GATE=VALUE,VALUE or the name of an on/off setting; repeatable, all multiply")
    ],
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="flags for every cell's server")
    ] = None,
    engine: Engine = "firesteel",
    model: ServedName = "kindling",
    full: Annotated[
        bool, typer.Option("--full", help="run the whole benchmark in every cell, not one workload")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="measure crashed cells again")] = False,
    cell_s: Annotated[float, typer.Option(help="time limit of a cell in seconds")] = 3600.0,
    out: Annotated[Path, typer.Option(help="folder for cells and report; a second call continues")] = Path(
        "firesteel-matrix"
    ),
    as_json: AsJson = False,
) -> None:
    """Measure the product of gates, each cell in its own process; exit code 1 if a cell was not done."""
    from firesteel.device import find_device
    from firesteel.lab.matrix.matrix import CELLS, run_matrix
    from firesteel.lab.matrix.result import SMALL, Matrix
    from firesteel.lab.report.report import write_report
    from firesteel.lab.result import RESULT, EngineInfo, LabResult
    from firesteel.lab.surroundings import StatedSurroundings

    matrix = Matrix(
        gates=parse_gates(gates, engine=engine),
        engine=engine,
        model=model,
        flags=tuple(flags or ()),
        plan=BenchPlan() if full else SMALL,
        cell_s=cell_s,
    )
    with writing_to(out):
        measured = run_matrix(matrix, out / CELLS, on_progress=say, again=again)
        result = LabResult(
            engine=EngineInfo(name=hide_secrets((engine,))[0], model=model),
            matrix=measured,
            surroundings=StatedSurroundings.now(find_device()),
        )
        write_atomically(out / RESULT, result.as_dict())
        page = write_report(result, out)[0]
    if as_json:
        print_json(measured.as_dict())
    else:
        show(matrix_table(measured))
        say(f"{measured.words}; heat map: {page}")
    if not measured.all_done:
        raise typer.Exit(ExitCode.FAILED)


def matrix_table(measured: MatrixResult) -> Table:
    """Builds a row per cell; the best value of each figure is highlighted."""
    from firesteel.lab.matrix.result import DONE

    gates, figures = list(measured.gates), measured.figures
    table = new_table(*gates, "status", *(f"{name} ({unit})" for name, unit in figures.items()), "reason")
    best = {name: find_best(measured, name) for name in figures}
    for cell in measured.cells:
        values = {name: cell.figures.get(name) for name in figures}
        texts = [
            Text("" if value is None else f"{value:.4g}", "bold green" if value == best[name] else "")
            for name, value in values.items()
        ]
        status = Text(cell.status, "green" if cell.status == DONE else "bold red")
        table.add_row(*(cell.gates[gate] for gate in gates), status, *texts, Text(cell.reason))
    return table


def find_best(measured: MatrixResult, figure: str) -> float:
    from firesteel.lab.matrix.result import LOWER_IS_BETTER

    choose = min if figure in LOWER_IS_BETTER else max
    return choose(cell.figures[figure] for cell in measured.cells if figure in cell.figures)
