"""The verb `env`: shows the settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from firesteel.cli.app import app, with_settings
from firesteel.cli.choices import GPUS
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import choice_table, new_table, show
from firesteel.config import Settings, all_settings, resolve, shown_value

if TYPE_CHECKING:
    from firesteel.defaults import ServeDefaults


@app.command()
@partial(with_settings, is_server=True)
def env(
    settings: dict[str, Any],
    gpu: Annotated[
        str | None,
        typer.Option(help=f"show what serve would use on this GPU, which need not be here: {', '.join(GPUS)}"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show every setting with its value and origin."""
    from firesteel.defaults import find_defaults
    from firesteel.device.catalogue import find_listed_gpu
    from firesteel.kernels.operands.activation import BLOCK_SCALED_TRITON

    if gpu is None:
        show_settings(list_settings(resolve(settings)), as_json)
        return
    device = find_listed_gpu(gpu)
    defaults = find_defaults(settings, device, triton=BLOCK_SCALED_TRITON)
    if as_json:
        print_json(describe(defaults, device.name))
        return
    show_settings(list_settings(defaults.settings), as_json)
    if defaults.choices:
        show(choice_table(defaults, device.name))
    else:
        show(Text(f"{device.name}: preset {defaults.preset}, no default differs"))


def describe(defaults: ServeDefaults, device: str) -> dict[str, Any]:
    """Returns the defaults of a GPU for machines to read."""
    return {
        "gpu": device,
        "preset": defaults.preset,
        "choices": [choice.as_dict() for choice in defaults.choices],
        "settings": list_settings(defaults.settings),
    }


def list_settings(resolved: Settings) -> list[dict[str, Any]]:
    """Returns a row per setting, with secrets hidden."""
    return [
        {
            "name": setting.name,
            "value": shown_value(setting.name, getattr(getattr(resolved.config, setting.section), setting.name)),
            "origin": resolved.origins[setting.name],
            "variable": setting.env,
            "help": setting.help,
        }
        for setting in all_settings().values()
    ]


def show_settings(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    from firesteel.device.cores import count_cores

    table = new_table("setting", "value", "origin", "variable", "meaning")
    for row in rows:
        table.add_row(row["name"], Text(str(row["value"])), Text(row["origin"]), row["variable"], Text(row["help"]))
    show(table)
    show(Text(f"cores that this process may use: {count_cores()}"))
