"""The verb `eval`: exact match on held-out questions, and perplexity."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from firesteel.cli.app import app, with_settings
from firesteel.cli.options import AsJson, check_model, print_json


@app.command(name="eval")
@with_settings
def evaluate_model(
    settings: dict[str, Any],
    limit: Annotated[
        int | None, typer.Option(min=1, help="questions per family, and texts for the perplexity (default: all)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure exact match per family of held-out questions, and perplexity on held-out text."""
    check_model(settings)
    from firesteel.cli.model.load import load
    from firesteel.cli.progress import progress_bar
    from firesteel.cli.tables import report_table, show
    from firesteel.eval import evaluate

    llm = load(settings)
    with progress_bar("answering") as report_progress:
        report = evaluate(llm, limit=limit, progress=report_progress)
    if as_json:
        print_json(report.as_dict())
    else:
        show(report_table(report))
