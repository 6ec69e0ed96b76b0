"""The verb `lab benchy`: speeds of a firesteel server as the program llama-benchy measures them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from firesteel.cli.bench.options import parse_numbers
from firesteel.cli.folder import writing_to
from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.exit_code import ExitCode


@lab.command(name="benchy")
def lab_benchy(
    flags: Annotated[list[str] | None, typer.Argument(metavar="[-- FLAGS]", help="flags for the server")] = None,
    model: Annotated[
        str, typer.Option(help="checkpoint folder, name in the local cache, or kindling")
    ] = "kindling",
    pp: Annotated[str, typer.Option(help="tokens per prompt, for example 512,2048")] = "2048",
    tg: Annotated[str, typer.Option(help="tokens per answer, for example 32,128")] = "32",
    depth: Annotated[str, typer.Option(help="tokens of context before the prompt, for example 0,4096")] = "0",
    runs: Annotated[int, typer.Option(min=1, help="timed requests of each combination")] = 3,
    limit_s: Annotated[float, typer.Option(min=1, help="time limit of llama-benchy in seconds")] = 2400.0,
    out: Annotated[
        Path, typer.Option(help="folder for the server's log, llama-benchy's report and its output")
    ] = Path("firesteel-benchy"),
    as_json: AsJson = False,
) -> None:
    """Start a server and run the installed llama-benchy against it; exit code 3 if it or its book is missing."""
    from firesteel.lab.bench.benchy import REPORT, BenchyPlan, BenchyUnavailable, run_benchy

    plan = BenchyPlan(
        pp=parse_numbers("--pp", pp, 1, None),
        tg=parse_numbers("--tg", tg, 1, None),
        depths=parse_numbers("--depth", depth, 0, None),
        runs=runs,
        limit_s=limit_s,
    )
    try:
        with writing_to(out):
            report = run_benchy(plan, model, out, flags or ())
    except BenchyUnavailable as error:
        if as_json:
            print_json(error.as_dict())
        say(f"not measured: {error}")
        raise typer.Exit(ExitCode.UNPROVEN) from error
    if as_json:
        print_json(report)
    else:
        show(benchy_table(report))
    say(f"llama-benchy's report is {out / REPORT}")


def benchy_table(report: dict[str, Any]) -> Table:
    table = new_table("depth", "prompt tokens", "pp tok/s", "answer tokens", "tg tok/s")
    table.title = f"{report['model']} by llama-benchy {report['version']}"
    for row in report["benchmarks"]:
        prompts, answers = (
            "" if row[speed] is None else f"{row[speed]['mean']:.1f} ± {row[speed]['std']:.1f}"
            for speed in ("pp_throughput", "tg_throughput")
        )
        sizes = (str(row[size]) for size in ("context_size", "prompt_size", "response_size"))
        context, prompt, response = sizes
        table.add_row(context, prompt, prompts, response, answers)
    return table
