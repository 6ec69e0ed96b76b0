"""The verb `env`: shows the settings."""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.text import Text

from firesteel.cli.app import app, with_knobs
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, show
from firesteel.config import knobs as all_knobs
from firesteel.config import resolve, shown_value


@app.command()
@partial(with_knobs, is_server=True)
def env(knobs: dict[str, Any], as_json: AsJson = False) -> None:
    """Show every setting with its value and origin."""
    settings = resolve(knobs)
    rows = [
        {
            "name": knob.name,
            "value": shown_value(knob.name, getattr(getattr(settings.config, knob.section), knob.name)),
            "origin": settings.origins[knob.name],
            "variable": knob.env,
            "help": knob.help,
        }
        for knob in all_knobs().values()
    ]
    if as_json:
        print_json(rows)
        return
    table = new_table("setting", "value", "origin", "variable", "meaning")
    for row in rows:
        table.add_row(row["name"], Text(str(row["value"])), Text(row["origin"]), row["variable"], Text(row["help"]))
    show(table)
