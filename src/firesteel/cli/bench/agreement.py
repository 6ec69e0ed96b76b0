"""The verb `bench agreement`: share of tokens that stay the same when requests run under other conditions.

In float32 on a CPU all stay the same. In bf16 on a GPU some change, because a sum is rounded differently in a batch
of another size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.table import Table
from rich.text import Text

from firesteel.cli.app import show_error, with_settings
from firesteel.cli.bench.options import RECORDS, Out, Synthetic, bench, check_folder
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.config import resolve
from firesteel.exit_code import ExitCode
from firesteel.measure.tokens.agreement import Agreement

if TYPE_CHECKING:
    from firesteel.measure.tokens.equalities import Unmeasured

Results: TypeAlias = "Sequence[Agreement | Unmeasured]"


@bench.command(name="agreement")
@with_settings
def bench_agreement(
    settings: dict[str, Any],
    requests: Annotated[int, typer.Option(min=2, help="requests per run")] = 16,
    prompt_tokens: Annotated[
        int, typer.Option(min=4, help="tokens of the longest prompt; others have half or more")
    ] = 256,
    max_tokens: Annotated[int, typer.Option(min=2, help="tokens per request; all are generated")] = 64,
    schedules: Annotated[
        int, typer.Option(min=0, help="further runs with random settings, order and arrival of the requests")
    ] = 0,
    synthetic: Synthetic = None,
    out: Out = RECORDS,
    as_json: AsJson = False,
) -> None:
    """Share of tokens that stay the same batched, chunked, cached, preempted, in another order, with a seed.

    Pages, tokens and sequences of a step are chosen for each run; other settings are used as given. With
    --batch-invariant every bit of the logits is compared, too, and exit code 1 says that some differ.
    """
    from firesteel.cli.bench.model import UNUSED_CACHE_GIB, check_context, find_context, open_model, with_cache
    from firesteel.measure.tokens.bench import measure_all
    from firesteel.measure.tokens.equalities import draw_mixed
    from firesteel.measure.tokens.runs import SEED

    config = resolve(settings).config
    check_folder(out)
    check_context(find_context(config, synthetic), prompt_tokens + max_tokens)
    name, loaded = open_model(with_cache(config, config.cache.kv_cache_gib or UNUSED_CACHE_GIB), synthetic)
    drawn = draw_mixed(requests, prompt_tokens, max_tokens, loaded.spec.vocab_size, seed=SEED)
    shape = {"model": name, "requests": requests, "prompt_tokens": prompt_tokens, "max_tokens": max_tokens}
    if schedules:
        shape["schedules"] = schedules
    with progress_bar("measuring") as report_progress:
        results = list(
            measure_all(loaded, config, drawn, shape, out, progress=report_progress, schedules=schedules)
        )
    if as_json:
        print_json([result.as_dict() for result in results])
    else:
        title = (
            f"{requests} requests of up to {prompt_tokens} + {max_tokens} tokens on {loaded.device.name}: {name}"
        )
        show(agreement_table(results, title))
    say(f"records are in {out}")
    report_differences(results)
    report_unmeasured(results)


def report_differences(results: Results) -> None:
    """Prints an error for each equality whose logits differ, and exits as failed if there are any."""
    differing = [
        result
        for result in results
        if isinstance(result, Agreement) and result.logits is not None and result.logits.bits_differing
    ]
    for result in differing:
        assert result.logits is not None
        bits = result.logits
        show_error(
            f"{result.equality}: {bits.bits_differing} bits differ in {bits.rows_differing} of {bits.rows} rows of "
            "logits; firesteel verify names the op"
        )
    if differing:
        raise typer.Exit(ExitCode.FAILED)


def report_unmeasured(results: Results) -> None:
    """Prints an error for each equality that could not be measured, and exits as unproven if there are any."""
    from firesteel.measure.tokens.equalities import Unmeasured

    unmeasured = [result for result in results if isinstance(result, Unmeasured)]
    for result in unmeasured:
        show_error(f"{result.equality} cannot be measured: {result.why_not}")
    if unmeasured:
        raise typer.Exit(ExitCode.UNPROVEN)


def agreement_table(results: Results, title: str) -> Table:
    from firesteel.measure.tokens.equalities import Unmeasured

    table = new_table(
        "equality",
        "run",
        "tokens compared",
        "tokens equal",
        "requests wholly equal",
        "tokens before the first difference",
        "differences per 1000 tokens",
        "largest margin",
    )
    has_bits = any(isinstance(result, Agreement) and result.logits is not None for result in results)
    if has_bits:
        table.add_column("rows of logits")
        table.add_column("bits that differ")
    table.title = title
    table.caption = (
        "before the first difference: mean over requests that differ; differences: first ones, over the tokens up "
        "to them; margin: nats between the two most likely tokens at the first difference"
    )
    for result in results:
        if isinstance(result, Unmeasured):
            table.add_row(result.equality, Text(f"not measured: {result.why_not}", "yellow"))
            continue
        bits = result.logits
        shown = () if not has_bits else ("-", "-") if bits is None else (str(bits.rows), str(bits.bits_differing))
        table.add_row(
            result.equality,
            result.evidence,
            str(result.num_tokens),
            f"{100 * result.token_share:.2f} %",
            f"{100 * result.request_share:.1f} %",
            _number(result.tokens_before, ".1f"),
            f"{1e3 * result.differences_a_token:.2f}",
            _number(result.largest_margin, ".4f"),
            *shown,
        )
    return table


def _number(value: float | None, shape: str) -> str:
    return "-" if value is None else format(value, shape)
