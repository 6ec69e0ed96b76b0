"""The verb spark-report: every check of this machine in one file; checks nothing itself."""

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
    out: Annotated[Path, typer.Option(help="the zip to write")] = Path("firesteel-spark-report.zip"),
    quick: Annotated[bool, typer.Option("--quick", help="few samples and sizes")] = False,
) -> None:
    """Doctor, verify, prove, bench ops and bench decode on this machine, packed into one file to send back."""
    device = find_device()
    if not device.is_cuda:
        say("no GPU was found: the report will hold what the CPU can do, and no kernel will run")
    with running("reporting"):
        reports = make_report(device, out, quick=quick, tell=say)
    say(f"wrote {out}; look into it before you send it: it holds summary.md, report.json, records and plots")
    if any(one.exit_code for one in reports):
        raise typer.Exit(1)
