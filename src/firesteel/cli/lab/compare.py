"""The verb lab compare: two results side by side; knows no arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.lab.compare.compare import (
    FASTER,
    LESS_MEMORY,
    MEMORY_GB,
    MORE_MEMORY,
    SLOWER,
    THRESHOLD,
    Comparison,
    compare,
)
from firesteel.lab.report.report import read_result

COLOURS = {SLOWER: "bold red", MORE_MEMORY: "bold red", FASTER: "green", LESS_MEMORY: "green"}


@lab.command(name="compare")
def lab_compare(
    before: Annotated[Path, typer.Argument(help="result.json or folder of the run to be held to")],
    after: Annotated[Path, typer.Argument(help="result.json or folder of the run that is judged")],
    slower: Annotated[float, typer.Option(help="percent from which a figure counts as slower")] = 100 * THRESHOLD,
    more_gb: Annotated[float, typer.Option(help="GB of peak memory from which it counts as more")] = MEMORY_GB,
    as_json: AsJson = False,
) -> None:
    """What is slower or larger than before, beyond the spread of the runs; exit code 1 if something is."""
    found = compare(read_result(before), read_result(after), threshold=slower / 100, memory_gb=more_gb)
    if as_json:
        print_json(found.as_dict())
    else:
        show(comparison_table(found, f"{before} -> {after}"))
        for line in found.differences:
            say(f"differs: {line}")
        for name in found.missing:
            say(f"measured before and not now: {name}")
        say(found.in_words())
    if found.regressions:
        raise typer.Exit(1)


def comparison_table(found: Comparison, title: str) -> Table:
    table = new_table("workload", "figure", "before", "after", "unit", "change", "interval", "verdict")
    table.title, table.caption = title, "95 % of such tables have every true change within its interval"
    for row in found.rows:
        interval = "one sample says nothing" if row.high == float("inf") else f"{row.low:+.1%} to {row.high:+.1%}"
        table.add_row(
            row.name, row.figure, f"{row.before:.5g}", f"{row.after:.5g}", row.unit, f"{row.change:+.1%}", interval,
            Text(row.verdict, COLOURS.get(row.verdict, "")),
        )  # fmt: skip
    return table
