"""The verb `bench agreement`: how many tokens stay the same when requests are run in other ways; knows no kernel.

In float32 on a CPU all do. In bf16 on a GPU some do not: a sum is rounded otherwise in a batch of another size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from firesteel.cli.app import show_error, with_knobs
from firesteel.cli.bench.engine import SEED, check_context, find_context, open_model
from firesteel.cli.bench.ops import bench, check_folder
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.config import Config, resolve
from firesteel.device import GIB
from firesteel.engine.cache.kv_cache import find_dtype, find_layout, page_bytes
from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.measure.record import Record
from firesteel.measure.tokens.agreement import Agreement
from firesteel.measure.tokens.equalities import NAMES, EngineSetup, Equalities, Open, Unmeasured, draw_mixed
from firesteel.model.spec import PRESETS
from firesteel.types import Request

LOADED_PAGES_GIB = 0.1  # of the engine that comes with a model, which is not used


@bench.command(name="agreement")
@with_knobs
def bench_agreement(
    knobs: dict[str, Any],
    requests: Annotated[int, typer.Option(min=2, help="run in every way")] = 16,
    prompt_tokens: Annotated[
        int, typer.Option(min=4, help="of the longest prompt; others have half or more")
    ] = 256,
    max_tokens: Annotated[int, typer.Option(min=2, help="of each request; all are generated")] = 64,
    synthetic: Annotated[str | None, typer.Option(help="random weights of " + " or ".join(PRESETS))] = None,
    out: Annotated[Path, typer.Option(help="folder for records")] = Path("firesteel-bench"),
    as_json: AsJson = False,
) -> None:
    """Share of tokens that stay the same batched, chunked, cached, preempted, in another order, with a seed.

    Pages, tokens and sequences of a step are chosen for each way; other settings are used as given.
    """
    config = resolve(knobs).config
    check_folder(out)
    check_context(find_context(config, synthetic), prompt_tokens + max_tokens)
    name, loaded = open_model(_with_pages(config, config.cache.kv_cache_gib or LOADED_PAGES_GIB), synthetic)
    drawn = draw_mixed(requests, prompt_tokens, max_tokens, loaded.spec.vocab_size, seed=SEED)
    shape = {"model": name, "requests": requests, "prompt_tokens": prompt_tokens, "max_tokens": max_tokens}
    found = measure(loaded, config, drawn, shape, out)
    if as_json:
        print_json([one.as_dict() for one in found])
    else:
        title = (
            f"{requests} requests of up to {prompt_tokens} + {max_tokens} tokens on {loaded.device.name}: {name}"
        )
        show(agreement_table(found, title))
    say(f"records are in {out}")
    report_unmeasured(found)


def measure(
    loaded: Loaded, config: Config, requests: Sequence[Request], shape: dict[str, Any], out: Path
) -> list[Agreement | Unmeasured]:
    """Each record is saved as soon as it is made."""
    found: list[Agreement | Unmeasured] = []
    with progress_bar("measuring") as report_progress:
        for agreement in Equalities(requests, opener(loaded, config, requests), seed=SEED).measure():
            found.append(agreement)
            if isinstance(agreement, Agreement):
                record(loaded, config, agreement, shape).save(out)
            report_progress(len(found), len(NAMES))
    return found


def report_unmeasured(found: Sequence[Agreement | Unmeasured]) -> None:
    """A line for each way that did not come about, and exit code 1."""
    missing = [one for one in found if isinstance(one, Unmeasured)]
    for one in missing:
        show_error(f"{one.equality} cannot be measured: {one.why_not}")
    if missing:
        raise typer.Exit(1)


def opener(loaded: Loaded, config: Config, requests: Sequence[Request]) -> Open:
    """Makes engines with a cache as large as the requests need, or as a way is to have."""
    spec, size = loaded.spec, config.batch.page_size
    layout, one = find_layout(spec, size), page_bytes(spec, size, find_dtype(config.cache.kv_dtype, loaded.device))
    lengths = [request.num_prompt + request.max_new for request in requests]

    def count_pages(share: float | None) -> int:
        if share is None:
            return sum(layout.count_pages(length, chunk=length) for length in lengths)
        needed = [layout.count_pages(length) for length in lengths]
        return max(int(share * sum(needed)), *needed)

    def open_engine(way: EngineSetup) -> Engine:
        batch = replace(
            config.batch, max_num_seqs=way.max_num_seqs, max_num_batched_tokens=way.max_num_batched_tokens
        )
        cache = _with_pages(config, (count_pages(way.page_share) + 0.5) * one / GIB).cache
        return Engine(
            loaded.model, loaded.device, batch, replace(cache, prefix_caching=way.prefix_caching),
            max_context=loaded.max_context, kernels=config.kernels, fused=loaded.fused,
        )  # fmt: skip

    return open_engine


def _with_pages(config: Config, gib: float) -> Config:
    return replace(config, cache=replace(config.cache, kv_cache_gib=gib))


def record(loaded: Loaded, config: Config, agreement: Agreement, shape: dict[str, Any]) -> Record:
    """Samples are shares of equal tokens, one a request."""
    return Record.now(
        loaded.device, config, name=f"agreement {agreement.equality}", unit="share of tokens",
        samples=[pair.num_equal / pair.num_tokens for pair in agreement.pairs], warmups=0, seed=SEED,
        kernels=loaded.table(), startup_s=loaded.report.seconds,
        parameters={
            **agreement.as_dict(), **shape, "tokens_before": [pair.num_before for pair in agreement.pairs],
        },
    )  # fmt: skip


def agreement_table(found: Sequence[Agreement | Unmeasured], title: str) -> Table:
    table = new_table(
        "equality", "run", "tokens compared", "tokens equal", "requests wholly equal",
        "tokens before the first difference", "differences a 1000 tokens", "largest margin",
    )  # fmt: skip
    table.title = title
    table.caption = (
        "before the first difference: mean over requests that differ; differences: first ones, over the tokens up "
        "to them; margin: nats between the two most likely tokens where the requests part"
    )
    for one in found:
        if isinstance(one, Unmeasured):
            table.add_row(one.equality, Text(f"not measured: {one.why_not}", "yellow"))
            continue
        table.add_row(
            one.equality, one.evidence, str(one.num_tokens), f"{100 * one.token_share:.2f} %",
            f"{100 * one.request_share:.1f} %", _number(one.tokens_before, ".1f"),
            f"{1e3 * one.differences_a_token:.2f}", _number(one.largest_margin, ".4f"),
        )  # fmt: skip
    return table


def _number(value: float | None, shape: str) -> str:
    return "-" if value is None else format(value, shape)
