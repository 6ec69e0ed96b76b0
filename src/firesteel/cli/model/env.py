"""The verb `env`: shows the settings."""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.text import Text

from firesteel.cli.app import app, with_settings
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, show
from firesteel.config import all_settings, resolve, shown_value


@app.command()
@partial(with_settings, is_server=True)
def env(settings: dict[str, Any], as_json: AsJson = False) -> None:
    """Show every setting with its value and origin."""
    resolved = resolve(settings)
    rows = [
        {
            "name": setting.name,
            "value": shown_value(setting.name, getattr(getattr(resolved.config, setting.section), setting.name)),
            "origin": resolved.origins[setting.name],
            "variable": setting.env,
            "help": setting.help,
        }
        for setting in all_settings().values()
    ]
    if as_json:
        print_json(rows)
        return
    table = new_table("setting", "value", "origin", "variable", "meaning")
    for row in rows:
        table.add_row(row["name"], Text(str(row["value"])), Text(row["origin"]), row["variable"], Text(row["help"]))
    show(table)
