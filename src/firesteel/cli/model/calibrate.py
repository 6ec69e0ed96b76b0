"""The verb `calibrate`: scales for FP8 keys and values, from a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from firesteel.cli.app import app, with_settings
from firesteel.cli.options import check_model
from firesteel.errors import UserError

FIXED = {
    "model": "give the model as the first argument",
    "kv_dtype": "calibration stores keys and values as computed",
    "kv_scales": "calibration computes the scales",
}


@app.command(name="calibrate")
@with_settings
def calibrate_model(
    settings: dict[str, Any],
    checkpoint: Annotated[
        str, typer.Argument(metavar="MODEL", help="checkpoint folder or name, or kindling (built in)")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="new file to write, for --kv-scales")],
    text: Annotated[Path | None, typer.Option(help="UTF-8 file (default for kindling: its held-out text)")] = None,
) -> None:
    """Compute scales for FP8 keys and values from the largest ones that a text causes in each layer.

    --model, --kv-dtype and --kv-scales cannot be set here.
    """
    refuse_fixed(settings)
    check_model({**settings, "model": checkpoint})
    from firesteel.calibrate import calibrate, read_prompts
    from firesteel.cli.model.load import load
    from firesteel.cli.progress import progress_bar
    from firesteel.cli.tables import calibration_table, say, show
    from firesteel.engine.cache.kv_scales import fill_file, new_file

    with new_file(out):
        llm = load({**settings, "model": checkpoint, "kv_dtype": "auto", "kv_scales": ""})
        prompts = read_prompts(llm, text)
        with progress_bar("calibrating") as report_progress:
            calibration = calibrate(llm, prompts, progress=report_progress)
        fill_file(out, calibration.scales)
    show(calibration_table(calibration))
    say(f"wrote {out}: use it with --kv-dtype fp8 --kv-scales {out}")


def refuse_fixed(settings: dict[str, Any]) -> None:
    for name, why in FIXED.items():
        if name in settings:
            raise UserError(f"--{name.replace('_', '-')} {settings[name]} cannot be set here: {why}; leave it out")
