"""The verb `spark-report`: every check of this machine in one file."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.app import app
from firesteel.cli.progress import running
from firesteel.cli.tables import say
from firesteel.exit_code import ExitCode
from firesteel.hub import find_checkpoint

TERMINATED = 128 + signal.SIGTERM


@app.command(name="spark-report")
def spark_report(
    out: Annotated[Path, typer.Option(help="zip file to write")] = Path("firesteel-spark-report.zip"),
    model: Annotated[
        str | None,
        typer.Option(
            help="checkpoint folder or name in the local cache: adds loading, prompts, engine, server, "
            "llama-benchy and quality"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="few samples and sizes")] = False,
) -> None:
    """Time decoding and prompts, run doctor, verify, prove and bench ops, and pack the results into one file."""
    from firesteel.device import find_device
    from firesteel.spark_report.run import make_report

    device = find_device()
    checkpoint = None if model is None else find_checkpoint(model)
    if not device.is_cuda:
        say("no GPU was found: the report will cover the CPU only, and no kernel will run")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # ends the running part too
    with running("reporting"):
        reports = make_report(device, out, quick=quick, model=checkpoint, tell=say)
    say(f"wrote {out}: summary.md, report.json, machine.csv, records and plots; nothing was sent")
    say("read it, then attach it to an issue of the firesteel project")
    if any(report.has_failed for report in reports):
        raise typer.Exit(ExitCode.FAILED)
    if any(report.exit_code for report in reports):
        raise typer.Exit(ExitCode.UNPROVEN)
