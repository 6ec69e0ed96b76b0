"""The verb `quantize`: writes a copy of a checkpoint with dense layers in MXFP4."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.app import app
from firesteel.cli.options import AsJson, print_json
from firesteel.config import parse_layers
from firesteel.hub import find_checkpoint


@app.command()
def quantize(
    source: Annotated[str, typer.Argument(metavar="IN", help="checkpoint folder or name")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="new folder to write")],
    layers: Annotated[
        str, typer.Option(help="layers to quantise: some of qkv, o, lm_head joined by commas, or all")
    ] = "all",
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint with dense layers in MXFP4, which only firesteel reads; print the error against BF16."""
    folder = find_checkpoint(source)
    from firesteel.cli.progress import progress_bar
    from firesteel.model.quantize import quantize_checkpoint

    with progress_bar("quantising", in_bytes=True) as report_progress:
        report = quantize_checkpoint(folder, target, parse_layers(layers), report_progress)
    if as_json:
        print_json(report.as_dict())
    else:
        print("\n".join(report.in_words()))
