"""The verb calibrate: scales for FP8 keys and values, from a text; knows no arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from firesteel.calibrate import calibrate, read_prompts
from firesteel.cli.app import app, with_knobs
from firesteel.cli.model.load import load
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import calibration_table, say, show
from firesteel.engine.cache.kv_scales import fill_file, new_file
from firesteel.errors import UserError

FIXED = {
    "model": "the model is the first argument",
    "kv_dtype": "keys and values are stored as computed, to see how large they get",
    "kv_scales": "scales are what is looked for",
}


@app.command(name="calibrate")
@with_knobs
def calibrate_model(
    knobs: dict[str, Any],
    checkpoint: Annotated[str, typer.Argument(metavar="MODEL", help="checkpoint folder or name, or kindling")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="new file, for --kv-scales")],
    text: Annotated[Path | None, typer.Option(help="file in UTF-8; without it, Kindling's held-out text")] = None,
) -> None:
    """Find scales for FP8 keys and values: run a text, see how large they get in each layer, write a file.

    --model, --kv-dtype and --kv-scales cannot be set here.
    """
    refuse_fixed(knobs)
    with new_file(out):
        llm = load({**knobs, "model": checkpoint, "kv_dtype": "auto", "kv_scales": ""})
        prompts = read_prompts(llm, text)
        with progress_bar("calibrating") as report_progress:
            found = calibrate(llm, prompts, progress=report_progress)
        fill_file(out, found.scales)
    show(calibration_table(found))
    say(f"wrote {out}: use it with --kv-dtype fp8 --kv-scales {out}")


def refuse_fixed(knobs: dict[str, Any]) -> None:
    for name, why in FIXED.items():
        if name in knobs:
            raise UserError(f"--{name.replace('_', '-')} {knobs[name]}: {why}: leave it out")
