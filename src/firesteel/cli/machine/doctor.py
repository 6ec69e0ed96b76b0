"""The verb `doctor`: examines this machine."""

from __future__ import annotations

import typer

from firesteel.cli.app import app
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import finding_table, show
from firesteel.exit_code import ExitCode


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Examine this machine, and show what would be used and why; exit code 1 if something is wrong."""
    from firesteel.doctor import FindingStatus, examine

    findings = examine()
    if as_json:
        print_json([finding.as_dict() for finding in findings])
    else:
        show(finding_table(findings))
    if any(finding.status is FindingStatus.FAIL for finding in findings):
        raise typer.Exit(ExitCode.FAILED)
