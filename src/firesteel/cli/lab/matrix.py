"""The verb lab matrix: gates multiplied, a table and a heat map; measures nothing itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from firesteel.cli.folder import writing_to
from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.device import find_device
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.matrix.matrix import CELLS, DONE, SMALL, Matrix, parse_gates, run_matrix
from firesteel.lab.report.report import write_report
from firesteel.surroundings import look_around
from firesteel.whole import write_whole


@lab.command(name="matrix")
def lab_matrix(
    gates: Annotated[
        list[str], typer.Option(help="GATE=VALUE,VALUE or a switch's name; may be repeated: all are multiplied")
    ],
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="for every cell's command line")
    ] = None,
    engine: Annotated[str, typer.Option(help="firesteel, vllm, sglang, llamacpp, or a command with {port}")] = (
        "firesteel"
    ),
    model: Annotated[
        str, typer.Option(help="checkpoint folder, name in the local cache, or kindling")
    ] = "kindling",
    full: Annotated[
        bool, typer.Option("--full", help="the whole benchmark in every cell, not one workload")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="measure cells that crashed once more")] = False,
    cell_s: Annotated[float, typer.Option(help="seconds that a cell may take")] = 3600.0,
    out: Annotated[Path, typer.Option(help="folder for cells and the report; a second call goes on there")] = Path(
        "firesteel-matrix"
    ),
    as_json: AsJson = False,
) -> None:
    """Measure the product of gates, each cell apart; exit code 1 if a cell did not get done."""
    matrix = Matrix(
        gates=parse_gates(gates, engine=engine), engine=engine, model=model, flags=tuple(flags or ()),
        plan=BenchPlan() if full else SMALL, cell_s=cell_s,
    )  # fmt: skip
    with writing_to(out):
        found = run_matrix(matrix, out / CELLS, tell=say, again=again)
        result: dict[str, Any] = {
            "levels": [], "engine": {"name": matrix.as_dict()["engine"], "model": model}, "matrix": found,
            "surroundings": dataclasses.asdict(look_around(find_device())),
        }  # fmt: skip
        write_whole(out / "result.json", result)
        page = write_report(result, out)[0]
    if as_json:
        print_json(found)
    else:
        show(matrix_table(found))
        say(f"{found['words']}; heat map: {page}")
    if not found["all_done"]:
        raise typer.Exit(1)


def matrix_table(found: Mapping[str, Any]) -> Table:
    """A row a cell; the best of each figure stands out."""
    gates, figures = list(found["gates"]), found["figures"]
    table = new_table(*gates, "status", *(f"{name} ({unit})" for name, unit in figures.items()), "reason")
    lower = {"ttft_ms", "peak_memory_gb", "startup_s"}
    best = {
        name: (min if name in lower else max)(
            one["figures"][name] for one in found["cells"] if name in one["figures"]
        )
        for name in figures
    }
    for cell in found["cells"]:
        values = [cell["figures"].get(name) for name in figures]
        texts = [
            Text("" if value is None else f"{value:.4g}", "bold green" if value == best[name] else "")
            for name, value in zip(figures, values, strict=True)
        ]
        status = Text(cell["status"], "green" if cell["status"] == DONE else "bold red")
        table.add_row(*(str(cell["gates"][gate]) for gate in gates), status, *texts, Text(cell["reason"]))
    return table
