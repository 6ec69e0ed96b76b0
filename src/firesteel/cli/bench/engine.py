"""The verb `bench engine`: tokens per second at several concurrencies, and the time in each stage.

Some of the texts are rescored afterwards. In float32 all their tokens must be the most likely ones; in bf16 a few
may be nearly so. Gaps that rounding does not explain are an error, after the record is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from firesteel.cli.app import with_settings
from firesteel.cli.bench.options import RECORDS, Out, Synthetic, bench, parse_numbers
from firesteel.cli.bench.rescored import in_words, report_wrong_tokens
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.config import Config, resolve
from firesteel.errors import UserError

if TYPE_CHECKING:
    from firesteel.measure.loop.rounds import ConcurrencyFigures


@bench.command(name="engine")
@with_settings
def bench_engine(
    settings: dict[str, Any],
    concurrency: Annotated[str, typer.Option(help="requests in flight, for example 1,16")] = "1,16",
    prompt_tokens: Annotated[int, typer.Option(min=2, help="prompt tokens per request")] = 64,
    max_tokens: Annotated[int, typer.Option(min=2, help="tokens per request; all are generated")] = 64,
    requests: Annotated[int, typer.Option(min=1, help="requests per round, at every concurrency")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="timed passes over the requests")] = 3,
    check: Annotated[int, typer.Option(min=0, help="texts rescored as prompts, alone, to check their tokens")] = 4,
    synthetic: Synthetic = None,
    out: Out = RECORDS,
    as_json: AsJson = False,
) -> None:
    """Tokens per second of the engine in prefill and in decode, and the time in each stage; no prefix caching."""
    from firesteel.cli.bench.model import check_context, check_pages, find_context, open_model
    from firesteel.measure.loop.rounds import measure_concurrency, record
    from firesteel.measure.tokens.rescore import is_rounded
    from firesteel.measure.tokens.runs import SEED, draw_requests
    from firesteel.types import SamplingParams

    levels = parse_numbers("--concurrency", concurrency, 1, None)
    config = resolve({"prefix_caching": False, "max_num_seqs": max(64, *levels), **settings}).config
    check_seqs(config, max(levels))
    check_context(find_context(config, synthetic), prompt_tokens + max_tokens, is_rescored=check > 0)
    name, loaded = open_model(config, synthetic)
    check_pages(loaded.engine, prompt_tokens + max_tokens - (check == 0))
    params = SamplingParams(max_tokens=max_tokens)
    drawn = draw_requests([prompt_tokens] * requests, params, loaded.spec.vocab_size, seed=SEED)
    shape = {"model": name, "requests": requests, "prompt_tokens": prompt_tokens, "max_tokens": max_tokens}
    measured: list[ConcurrencyFigures] = []
    with progress_bar("measuring") as report_progress:
        for level in levels:
            measured.append(measure_concurrency(loaded.engine, drawn, level, rounds=rounds, num_checked=check))
            record(loaded, config, measured[-1], shape).save(out)
            report_progress(len(measured), len(levels))
    if as_json:
        print_json([figures.as_dict() for figures in measured])
    else:
        title = f"{requests} requests of {prompt_tokens} + {max_tokens} tokens on {loaded.device.name}: {name}"
        show(engine_table(measured, title))
    say(f"records are in {out}")
    checks = [(figures.concurrency, figures.reread) for figures in measured]
    report_wrong_tokens(checks, is_rounded=is_rounded(loaded.device, config))


def engine_table(measured: Sequence[ConcurrencyFigures], title: str) -> Table:
    from firesteel.measure.loop.figures import STAGES

    table = new_table(
        "in flight",
        "tok/s",
        "prefill tok/s",
        "decode tok/s",
        "first token ms",
        "ms per token",
        "steps",
        "scheduler ms",
        "batch ms",
        "model ms",
        "sample and wait ms",
        "most likely when rescored",
    )
    table.title = title
    table.caption = "medians over rounds; stages: per step; the last includes waiting for the GPU"
    for figures in measured:
        table.add_row(
            str(figures.concurrency),
            f"{figures.median('output_tok_s'):.1f}",
            f"{figures.median('prefill_tok_s'):.1f}",
            f"{figures.median('decode_tok_s'):.1f}",
            f"{1e3 * figures.median('first_token_s'):.1f}",
            f"{1e3 * figures.median('token_s'):.2f}",
            f"{figures.median('steps'):.0f}",
            *(f"{figures.stage_ms(stage):.3f}" for stage in STAGES),
            in_words(figures.reread),
        )
    return table


def check_seqs(config: Config, concurrency: int) -> None:
    from firesteel.device import find_device
    from firesteel.engine.limits import find_most_requests

    most = find_most_requests(config.batch, find_device(config.model.device))
    if concurrency > most:
        raise UserError(f"--concurrency {concurrency}: max_num_seqs = {most}: raise it, or lower the concurrency")
