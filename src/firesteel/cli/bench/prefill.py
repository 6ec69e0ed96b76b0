"""The verb `bench prefill`: milliseconds from a prompt to its first token, through the engine."""

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

if TYPE_CHECKING:
    from firesteel.measure.loop.prefill import PrefillFigures


@bench.command(name="prefill")
@with_settings
def bench_prefill(
    settings: dict[str, Any],
    tokens: Annotated[str, typer.Option(help="tokens per prompt, for example 2048,8192")] = "2048,8192",
    rounds: Annotated[int, typer.Option(min=1, help="timed prompts of each length")] = 10,
    synthetic: Synthetic = None,
    out: Out = RECORDS,
    as_json: AsJson = False,
) -> None:
    """Time from a prompt's submission to its first token, one prompt at a time; no prefix caching."""
    from firesteel.cli.bench.model import check_context, check_pages, find_context, open_model
    from firesteel.measure.loop.prefill import measure_prefill, record

    lengths = parse_numbers("--tokens", tokens, 1, None)
    config = resolve({"prefix_caching": False, **settings}).config
    check_context(find_context(config, synthetic), max(lengths) + 1)
    check_folder(out)
    name, loaded = open_model(config, synthetic)
    check_pages(loaded.engine, max(lengths))
    measured = []
    with progress_bar("measuring") as report_progress:
        for done, length in enumerate(lengths, start=1):
            measured.append(measure_prefill(loaded, length, rounds))
            record(loaded, config, measured[-1], name).save(out)
            report_progress(done, len(lengths))
    if as_json:
        print_json([{**figures.as_dict(), "load_s": loaded.report.seconds} for figures in measured])
    else:
        show(prefill_table(measured, f"prompts of {name} on {loaded.device.name}"))
    say(f"records are in {out}")


def prefill_table(measured: list[PrefillFigures], title: str) -> Table:
    table = new_table("prompt tokens", "ms", "tok/s", "steps", "fastest ms", "slowest ms")
    table.title = title
    samples = len(measured[0].samples_ms)
    table.caption = f"medians of {samples} prompts, all different, from submission to first token"
    for figures in measured:
        table.add_row(
            str(figures.tokens),
            f"{figures.milliseconds:.2f}",
            f"{figures.tok_s:.0f}",
            str(figures.steps),
            f"{min(figures.samples_ms):.2f}",
            f"{max(figures.samples_ms):.2f}",
        )
    return table
