"""The verb lab review: one gate off and on, and a sheet that says what came of it; measures nothing itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from firesteel.cli.folder import writing_to
from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.config import hide_secrets
from firesteel.device import find_device
from firesteel.lab.matrix.matrix import Matrix
from firesteel.lab.matrix.review import check_level_two, find_sides, parse_gate, review_gate, with_plan
from firesteel.lab.report.report import write_report
from firesteel.surroundings import look_around
from firesteel.whole import write_whole


@lab.command(name="review")
def lab_review(
    gate: Annotated[str, typer.Argument(help="a switch, or GATE=OFF,ON as kv_dtype=auto,fp8")],
    flags: Annotated[list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="for both sides")] = None,
    engine: Annotated[str, typer.Option(help="firesteel, vllm, sglang, llamacpp, or a command with {port}")] = (
        "firesteel"
    ),
    model: Annotated[
        str, typer.Option(help="checkpoint folder, name in the local cache, or kindling")
    ] = "kindling",
    hypothesis: Annotated[str, typer.Option(help="what the gate is thought to do")] = "",
    rounds: Annotated[int, typer.Option(min=2, help="servers started for each side, in turn")] = 3,
    runs: Annotated[int, typer.Option(min=1, help="counted runs with each server")] = 5,
    correctness: Annotated[bool, typer.Option(help="level 2 with the gate on")] = True,
    out: Annotated[Path, typer.Option(help="folder for the sheet and all it stands on")] = Path("firesteel-review"),
    as_json: AsJson = False,
) -> None:
    """Measure a gate off and on and write hypothesis, criteria, result and verdict."""
    matrix = with_plan(
        Matrix(gates=parse_gate(gate, engine=engine), engine=engine, model=model, flags=tuple(flags or ())), runs
    )
    check = check_level_two(matrix) if correctness else None
    find_sides(matrix)
    with writing_to(out):
        found, compared = review_gate(matrix, out, rounds=rounds, hypothesis=hypothesis, tell=say, check=check)
        result: dict[str, Any] = {
            "levels": [], "engine": {"name": hide_secrets((engine,))[0], "model": model}, "review": found.as_dict(),
            "comparison": compared.as_dict(), "surroundings": dataclasses.asdict(look_around(find_device())),
        }  # fmt: skip
        write_whole(out / "result.json", result)
        page, sheet = write_report(result, out)
    if as_json:
        print_json(found.as_dict())
        return
    table = new_table("criterion", "wanted", "found", "met")
    table.title, table.caption = found.hypothesis, f"{found.verdict}: {found.why}"
    for one in found.criteria:
        met = {True: "yes", False: "[bold red]no", None: "[yellow]unclear"}[one.met]
        table.add_row(one.criterion, one.wanted, one.found, met)
    show(table)
    say(f"the sheet: {sheet}; as a page: {page}")
