"""The verb `lab compare`: two results side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from firesteel.cli.choices import MORE_GB, SLOWER_PERCENT
from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show

if TYPE_CHECKING:
    from firesteel.lab.compare.compare import Comparison


@lab.command(name="compare")
def lab_compare(
    before: Annotated[Path, typer.Argument(help="result.json or folder of the earlier run")],
    after: Annotated[Path, typer.Argument(help="result.json or folder of the run to judge")],
    slower: Annotated[float, typer.Option(help="slowdown in percent that counts")] = SLOWER_PERCENT,
    more_gb: Annotated[float, typer.Option(help="growth of peak memory in GB that counts")] = MORE_GB,
    as_json: AsJson = False,
) -> None:
    """Show what is slower or larger than before, beyond the spread of the runs; exit code 1 if anything is.

    The exit code is 3 if the runs are too few or too noisy to show it.
    """
    from firesteel.lab.compare.compare import compare
    from firesteel.lab.compare.samples import take_samples
    from firesteel.lab.result import read_result
    from firesteel.lab.surroundings import list_differences

    old, new = read_result(before), read_result(after)
    compared = compare(
        take_samples(old.counted_bench()),
        take_samples(new.counted_bench()),
        threshold=slower / 100,
        memory_gb=more_gb,
        differences=list_differences(old.surroundings, new.surroundings),
    )
    if as_json:
        print_json(compared.as_dict())
    else:
        show(comparison_table(compared, f"{before} -> {after}"))
        for line in compared.differences:
            say(f"differs: {line}")
        for name in compared.missing:
            say(f"measured before and not now: {name}")
        say(compared.in_words())
    raise typer.Exit(compared.verdict.exit_code)


def comparison_table(compared: Comparison, title: str) -> Table:
    from firesteel.lab.compare.compare import FASTER, LESS_MEMORY, MORE_MEMORY, SLOWER

    colours = {SLOWER: "bold red", MORE_MEMORY: "bold red", FASTER: "green", LESS_MEMORY: "green"}
    table = new_table("workload", "figure", "before", "after", "unit", "change", "interval", "verdict")
    table.title, table.caption = title, "in 95 % of such tables every true change is within its interval"
    for row in compared.rows:
        table.add_row(
            row.name,
            row.figure,
            f"{row.before:.5g}",
            f"{row.after:.5g}",
            row.unit,
            f"{row.change:+.1%}",
            row.interval,
            Text(row.verdict, colours.get(row.verdict, "")),
        )
    return table
