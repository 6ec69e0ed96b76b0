"""The verb `bench frontend`: rate and CPU time per token of the HTTP front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from firesteel.cli.app import show_error
from firesteel.cli.bench.options import RECORDS, Out, bench
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.exit_code import ExitCode

if TYPE_CHECKING:
    from firesteel.server.stub.bench import FrontendRound


ENOUGH = 0.97  # share of the rate: a round is slower at its beginning and end


@bench.command(name="frontend")
def bench_frontend(
    concurrency: Annotated[int, typer.Option(min=1, help="concurrent streams")] = 32,
    rate: Annotated[float, typer.Option(min=1, help="tokens per second that the engine sends in all")] = 10_000.0,
    max_tokens: Annotated[int, typer.Option(min=2, help="tokens per stream")] = 3000,
    rounds: Annotated[int, typer.Option(min=1, help="timed passes")] = 5,
    out: Out = RECORDS,
    as_json: AsJson = False,
) -> None:
    """Check that the HTTP server, on one core, keeps up with an engine; give its cost per token."""
    from firesteel.server.stub.bench import WARM_TOKENS, front_end, measure_round, medians, record

    with front_end(rate) as (url, process), progress_bar("measuring") as report_progress:
        measure_round(url, process, concurrency, WARM_TOKENS)
        measured = []
        for done in range(1, rounds + 1):
            measured.append(measure_round(url, process, concurrency, max_tokens))
            report_progress(done, rounds)
    shape = {"concurrency": concurrency, "rate_tok_s": rate, "max_tokens": max_tokens}
    record(measured, shape).save(out)
    if as_json:
        print_json({**shape, **medians(measured)})
    else:
        show(frontend_table(measured, shape))
    say(f"records are in {out}")
    if medians(measured)["tok_s"] < ENOUGH * rate:
        show_error(f"the front end did not keep up with {rate:g} tokens per second")
        raise typer.Exit(ExitCode.FAILED)


def frontend_table(rounds: Sequence[FrontendRound], shape: dict[str, Any]) -> Table:
    table = new_table("tok/s", "cores", "us per token", "chunks per token", "bytes per token")
    table.title = f"{shape['concurrency']} streams, {shape['rate_tok_s']:g} tokens per second from the engine"
    table.caption = "the front end alone, pinned to one core"
    for figures in rounds:
        table.add_row(
            f"{figures.tok_s:.0f}",
            f"{figures.core_share:.2f}",
            f"{figures.us_a_token:.1f}",
            f"{figures.chunks_a_token:.2f}",
            f"{figures.bytes_a_token:.0f}",
        )
    return table
