"""The verb `bench speculate`: cost of verifying drafted tokens, and what drafts gain at an acceptance."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from firesteel.cli.app import show_error, with_settings
from firesteel.cli.bench.options import RECORDS, Out, Synthetic, bench, check_folder, parse_numbers, parse_shares
from firesteel.cli.options import AsJson, failing, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import say, show
from firesteel.config import resolve
from firesteel.errors import UserError
from firesteel.exit_code import ExitCode

ACCEPTANCES = "0.5,0.6,0.7,0.8,0.9"


@bench.command(name="speculate")
@with_settings
def bench_speculate(
    settings: dict[str, Any],
    checkpoint: Annotated[str | None, typer.Argument(metavar="MODEL", help="the same as --model")] = None,
    synthetic: Synthetic = None,
    requests: Annotated[str, typer.Option(help="requests per step, for example 1,2,4")] = "1,2,4",
    rows: Annotated[
        int, typer.Option(min=2, help="most tokens of a request in one step: the last drawn one and its drafts")
    ] = 8,
    context: Annotated[
        str, typer.Option(help="tokens that each request holds at first, for example 2048,8192")
    ] = "2048",
    steps: Annotated[
        int, typer.Option(min=1, help="timed steps per case; with --engine: tokens per request")
    ] = 200,
    acceptance: Annotated[
        str,
        typer.Option(help="probabilities that a drafted token is accepted if the one before it was"),
    ] = ACCEPTANCES,
    engine: Annotated[
        bool,
        typer.Option(
            "--engine",
            help="through the whole engine, with drafts that are right by these chances; needs --synthetic",
        ),
    ] = False,
    draft_ms: Annotated[
        float, typer.Option("--draft-ms", min=0, help="milliseconds of drafting one token of every request")
    ] = 0.0,
    out: Out = RECORDS,
    as_json: AsJson = False,
) -> None:
    """Time steps that verify several tokens of each request; give break-even acceptance and speeds."""
    if checkpoint is not None and ("model" in settings or synthetic is not None):
        raise UserError(f"{checkpoint}: name the model once: as MODEL, with --model or with --synthetic")
    contexts = parse_numbers("--context", context, 0, None)
    counts = parse_numbers("--requests", requests, 1, None)
    shares = parse_shares("--acceptance", acceptance)
    settings = {**settings, **({} if checkpoint is None else {"model": checkpoint})}
    if engine:
        if synthetic is None or draft_ms:
            raise UserError(
                "--engine changes values of lm_head and drafts without a network: give --synthetic, no model "
                "and no --draft-ms"
            )
        from firesteel.cli.bench.simulated import bench_simulated
        from firesteel.measure.speculate.runs import SimulatedSweep

        simulated = SimulatedSweep(
            requests=counts, contexts=contexts, acceptances=shares, most_drafted=rows - 1, tokens=steps
        )
        bench_simulated(settings, synthetic, simulated, out=out, as_json=as_json)
        return
    from firesteel.cli.bench.decode import choose_device
    from firesteel.cli.bench.model import UNUSED_CACHE_GIB, open_model, with_cache
    from firesteel.cli.bench.speculate_tables import cost_table, speed_table
    from firesteel.measure.decode.bench import network_config
    from firesteel.measure.speculate.bench import (
        VerifySubject,
        VerifySweep,
        check_depth,
        choose_ops,
        measure_all,
        save_records,
    )
    from firesteel.measure.speculate.figures import VerifyCost, list_gains

    sweep = VerifySweep(
        requests=counts, most_rows=rows, contexts=contexts, steps=steps, acceptances=shares, draft_ms=draft_ms
    )
    config = resolve(settings).config
    device = choose_device(config, "bench speculate")
    check_folder(out)
    name, loaded = open_model(with_cache(network_config(config), UNUSED_CACHE_GIB), synthetic)
    check_depth(sweep, loaded)
    with failing():
        subject = VerifySubject(name=name, loaded=loaded, ops=choose_ops(loaded, config), config=config)
        with progress_bar("measuring") as report_progress:
            cases = list(measure_all(sweep, subject, progress=report_progress))
        costs = [case for case in cases if isinstance(case, VerifyCost)]
        save_records(sweep, subject, costs, out)
    gains = list_gains(costs, shares, draft_ms=draft_ms)
    if as_json:
        by_case = {gain.case: gain.as_dict() for gain in gains}
        print_json([{**case.as_dict(), **by_case.get(case.case, {})} for case in cases])
    elif costs:
        show(cost_table(costs, gains, f"{name} on {device.name}"))
        show(speed_table(gains))
    say(f"records are in {out}")
    failed = [case for case in cases if not isinstance(case, VerifyCost)]
    for case in failed:
        show_error(f"{case.case} were not measured: {case.why}")
    if failed:
        raise typer.Exit(ExitCode.FAILED)
