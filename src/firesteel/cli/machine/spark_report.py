"""The verb `spark-report`: every check of this machine in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.app import app
from firesteel.cli.progress import running
from firesteel.cli.tables import say
from firesteel.device import find_device
from firesteel.spark_report import make_report


@app.command(name="spark-report")
def spark_report(
    out: Annotated[Path, typer.Option(help="zip file to write")] = Path("firesteel-spark-report.zip"),
    quick: Annotated[bool, typer.Option("--quick", help="few samples and sizes")] = False,
) -> None:
    """Run doctor, verify, prove, bench ops and bench decode, and pack the results into one file to send back."""
    device = find_device()
    if not device.is_cuda:
        say("no GPU was found: the report will cover the CPU only, and no kernel will run")
    with running("reporting"):
        reports = make_report(device, out, quick=quick, tell=say)
    say(f"wrote {out}; check it before you send it: it has summary.md, report.json, records and plots")
    if any(report.exit_code for report in reports):
        raise typer.Exit(1)
