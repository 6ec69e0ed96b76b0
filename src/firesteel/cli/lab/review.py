"""The verb `lab review`: measures one gate off and on and writes a review."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from firesteel.atomic import write_atomically
from firesteel.cli.folder import writing_to
from firesteel.cli.lab.matrix import Engine, ServedName
from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.config import hide_secrets
from firesteel.exit_code import ExitCode
from firesteel.lab.level import BENCHMARK

if TYPE_CHECKING:
    from firesteel.lab.matrix.review import Review


@lab.command(name="review")
def lab_review(
    gate: Annotated[
        str,
        typer.Argument(
            help="an on/off setting, or GATE=OFF,ON such as kv_dtype=auto,fp8; GATE is a setting, a flag of "
            "another engine or env:VARIABLE. One value of the last two: without and with it"
        ),
    ],
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="flags for the servers of both sides")
    ] = None,
    engine: Engine = "firesteel",
    model: ServedName = "kindling",
    hypothesis: Annotated[str, typer.Option(help="expected effect of the gate")] = "",
    rounds: Annotated[int, typer.Option(min=2, help="servers started per side, in alternation")] = 3,
    runs: Annotated[int, typer.Option(min=1, help="counted runs per server")] = 5,
    correctness: Annotated[bool, typer.Option(help="level 2 with the gate on")] = True,
    out: Annotated[Path, typer.Option(help="folder for review and measurements")] = Path("firesteel-review"),
    as_json: AsJson = False,
) -> None:
    """Measure a gate off and on and write hypothesis, criteria, result and verdict.

    The exit code is 0 if the gate is accepted, 3 if that stays open, else 1.
    """
    from firesteel.device import find_device
    from firesteel.lab.engine_info import EngineInfo
    from firesteel.lab.level_two import check_by_level_two
    from firesteel.lab.matrix.result import Matrix
    from firesteel.lab.matrix.review import find_sides, parse_gate, review_gate, with_runs
    from firesteel.lab.report.report import write_report
    from firesteel.lab.result import RESULT, LabResult
    from firesteel.lab.spec_check import check_matrix
    from firesteel.lab.surroundings import StatedSurroundings

    gates = parse_gate(gate, engine=engine)
    matrix = Matrix(gates=gates, engine=engine, model=model, flags=tuple(flags or ()), level=str(BENCHMARK))
    find_sides(matrix)
    check_matrix(matrix)
    with writing_to(out):
        review, compared = review_gate(
            with_runs(matrix, runs),
            out,
            rounds=rounds,
            hypothesis=hypothesis,
            on_progress=say,
            check=check_by_level_two if correctness else None,
        )
        result = LabResult(
            engine=EngineInfo(name=hide_secrets((engine,))[0], model=model),
            review=review,
            comparison=compared,
            surroundings=StatedSurroundings.now(find_device()),
        )
        write_atomically(out / RESULT, result.as_dict())
        page, sheet = write_report(result, out)
    if as_json:
        print_json(review.as_dict())
    else:
        show(review_table(review))
        say(f"review: {sheet}; as a page: {page}")
    from firesteel.lab.matrix.review import ACCEPTED, OPEN

    codes = {ACCEPTED: ExitCode.PASSED, OPEN: ExitCode.UNPROVEN}
    raise typer.Exit(codes.get(review.verdict, ExitCode.FAILED))


def review_table(review: Review) -> Table:
    table = new_table("criterion", "wanted", "found", "met")
    table.title, table.caption = review.hypothesis, f"{review.verdict}: {review.why}"
    for row in review.criteria:
        met = {True: "yes", False: "[bold red]no", None: "[yellow]unclear"}[row.met]
        table.add_row(row.criterion, row.wanted, row.found, met)
    return table
