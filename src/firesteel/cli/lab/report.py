"""The verb `lab report`: writes the report of a result again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.folder import writing_to
from firesteel.cli.lab.run import lab
from firesteel.cli.tables import say


@lab.command(name="report")
def lab_report(
    result: Annotated[Path, typer.Argument(help="a result.json, or the folder of a run")],
    out: Annotated[
        Path | None, typer.Option(help="folder for report.html and report.md (default: that of the result)")
    ] = None,
) -> None:
    """Write report.html and report.md from a result."""
    from firesteel.lab.report.report import write_report
    from firesteel.lab.result import RESULT, read_result

    content = read_result(result)
    source = result / RESULT if result.is_dir() else result
    folder = out or source.parent
    with writing_to(folder):
        for path in write_report(content, folder, source):
            say(f"wrote {path}")
