"""The verb `bench workload`: mixed requests through the engine, as chats and agents send them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from firesteel.cli.app import with_settings
from firesteel.cli.bench.options import RECORDS, Out, Synthetic, bench, check_folder, parse_numbers
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.config import resolve
from firesteel.errors import UserError
from firesteel.heap import settled_heap

if TYPE_CHECKING:
    from firesteel.measure.loop.workload import WorkloadFigures


COUNTS = "comma-separated; empty: leave out"


@bench.command(name="workload")
@with_settings
def bench_workload(
    settings: dict[str, Any],
    turns: Annotated[str, typer.Option(help=f"cached tokens before the chat turns, {COUNTS}")] = "1024,8192",
    new: Annotated[str, typer.Option(help="new tokens per chat turn, comma-separated")] = "20,200",
    closed: Annotated[str, typer.Option(help=f"requests in flight of the closed loop, {COUNTS}")] = "1,8,32,64",
    rates: Annotated[str, typer.Option(help=f"requests per second of the open loop, {COUNTS}")] = "2,6",
    open_s: Annotated[float, typer.Option(min=0.1, help="seconds during which requests arrive")] = 12.0,
    scale: Annotated[float, typer.Option(min=0.001, max=1.0, help="factor on every length, for a trial")] = 1.0,
    synthetic: Synthetic = None,
    out: Out = RECORDS,
    as_json: AsJson = False,
) -> None:
    """Chat turns behind a cached prefix, a closed loop, and Poisson arrivals: first tokens, gaps and tokens/s."""
    from firesteel.cli.bench.model import check_context, check_pages, find_context, open_model
    from firesteel.measure.loop.mixed_requests import MixedRequests
    from firesteel.measure.loop.workload import Workload, WorkloadSweep, record

    sweep = WorkloadSweep(
        contexts=parse_counts("--turns", turns),
        new=parse_counts("--new", new),
        in_flight=parse_counts("--closed", closed),
        rates=parse_counts("--rates", rates),
        open_s=open_s,
    )
    if not len(sweep):
        raise UserError("no workload is left: give --turns with --new, --closed or --rates")
    config = resolve({"prepare": True, **settings}).config
    most = MixedRequests(vocab_size=1, scale=scale).scaled(sweep.most_tokens()) + 8
    check_context(find_context(config, synthetic), most)
    check_folder(out)
    name, loaded = open_model(config, synthetic)
    check_pages(loaded.engine, most)
    workload = Workload(MixedRequests(vocab_size=loaded.spec.vocab_size, scale=scale))
    measured = []
    with progress_bar("measuring") as report_progress, settled_heap():
        for done, figures in enumerate(sweep.run(loaded.engine, workload), start=1):
            measured.append(figures)
            record(loaded, config, figures, name).save(out)
            report_progress(done, len(sweep))
    if as_json:
        print_json([figures.as_dict() for figures in measured])
    else:
        show(workload_table(measured, f"mixed requests through {name} on {loaded.device.name}"))
    say(f"records are in {out}")


def parse_counts(flag: str, text: str) -> tuple[int, ...]:
    return parse_numbers(flag, text, 1, None) if text.strip() else ()


def workload_table(measured: list[WorkloadFigures], title: str) -> Table:
    table = new_table("workload", "requests", "output tok/s", "first token ms", "p99", "gap ms", "p99", "max")
    table.title = title
    table.caption = "medians unless said otherwise; a gap lies between two outputs of one request"
    for figures in measured:
        summary = figures.as_dict()
        first, gap = summary["first_token_ms"], summary["gap_ms"] or {"p50": 0.0, "p99": 0.0, "max": 0.0}
        described = ", ".join(f"{key} {value:g}" for key, value in figures.parameters.items())
        table.add_row(
            f"{figures.kind}: {described}",
            str(figures.num_requests),
            f"{figures.output_tok_s:,.0f}",
            f"{first['p50']:.1f}",
            f"{first['p99']:.1f}",
            f"{gap['p50']:.2f}",
            f"{gap['p99']:.2f}",
            f"{gap['max']:.1f}",
        )
    return table
