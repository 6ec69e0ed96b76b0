"""The verb calibrate: scales for FP8 keys and values, from a text; knows no arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firesteel.calibrate import calibrate, read_prompts
from firesteel.cli.app import app
from firesteel.cli.progress import progress_bar
from firesteel.cli.running import load
from firesteel.cli.tables import calibration_table, say, show
from firesteel.engine.kv_scales import check_writable, write_scales


@app.command(name="calibrate")
def calibrate_model(
    model: Annotated[str, typer.Argument(help="checkpoint folder or name, or kindling")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="new file, for --kv-scales")],
    text: Annotated[Path | None, typer.Option(help="file in UTF-8; without it, Kindling's held-out text")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N")] = None,
) -> None:
    """Find scales for FP8 keys and values: run a text, see how large they get in each layer, write a file."""
    check_writable(out)
    llm = load({"model": model, "device": device, "kv_dtype": "auto", "kv_scales": ""})
    prompts = read_prompts(llm, text)
    with progress_bar("calibrating") as report_progress:
        found = calibrate(llm, prompts, progress=report_progress)
    write_scales(out, found.scales)
    show(calibration_table(found))
    say(f"wrote {out}: use it with --kv-dtype fp8 --kv-scales {out}")
