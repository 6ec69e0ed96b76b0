"""The slots of a kernel path as a table for the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from firesteel.cli.lab.run_table import STYLES
from firesteel.cli.tables import new_table
from firesteel.lab.path.slots import SlotRow, SlotTable


def slot_table(slots: SlotTable) -> Table:
    table = new_table("slot", "value", "state", "evidence", "cure")
    table.title = f"kernel path of {slots.engine}" + (f", judged as {slots.path}" if slots.path else "")
    for row in slots.rows:
        style = STYLES[row.verdict] if row.counts else "dim"
        evidence = row.reason or (str(row.sightings[0]) if row.sightings else "")
        table.add_row(row.slot, row.value, Text(row.state.value, style), Text(evidence), Text(_cure(row)))
    return table


def _cure(row: SlotRow) -> str:
    return row.cure if row.counts else ""
