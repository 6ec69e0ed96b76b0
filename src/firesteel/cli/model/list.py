"""The verb `list`: shows the models on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from firesteel.cli.app import app
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, show
from firesteel.hub.cache import find_cache

if TYPE_CHECKING:
    from firesteel.cli.model.local_models import LocalModels

COLOURS = {"yes": "green", "not now": "yellow", "no": "red", "unknown": "yellow"}


@app.command(name="list")
def list_local(as_json: AsJson = False) -> None:
    """Show the models on this machine: size, whether they are complete, and whether they can run here."""
    from firesteel.cli.model.local_models import list_models
    from firesteel.config import resolve
    from firesteel.device import find_device

    held = list_models(find_device(resolve({}).config.model.device))
    if as_json:
        print_json([model.as_dict() for model in held.models])
    else:
        show(model_table(held))


def model_table(held: LocalModels) -> Table:
    table = new_table("model", "revision", "size", "complete", "quantisation", "runs here", "why")
    notes = [f"cache: {find_cache()}", "fetch or resume a model: firesteel pull NAME"]
    if held.num_others:
        notes.insert(1, f"not shown: other models ({held.num_others})")
    table.caption = "; ".join(notes)
    for model in held.models:
        revision = ", ".join(filter(None, (*model.revisions, model.commit[:7])))
        fit = Text(model.fit.value, COLOURS[model.fit.value])
        size, complete = decimal(model.num_bytes), "yes" if model.is_complete else Text("no", "red")
        table.add_row(
            Text(model.name), Text(revision), size, complete, Text(model.quantisation), fit, Text(model.why)
        )
    return table
