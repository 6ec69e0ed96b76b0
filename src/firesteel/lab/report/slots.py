"""The section on the kernel path: a row per slot with its value, verdict, evidence and cure."""

from __future__ import annotations

from firesteel.lab.path.slots import SlotRow, SlotState
from firesteel.lab.report.document import PLAIN, Cell, Part, Table
from firesteel.lab.report.headline import VERDICT_TONES
from firesteel.lab.result import LabResult


def slots(result: LabResult) -> list[Part]:
    table = result.any_slots
    if table is None:
        return []
    rows = [_row(row) for row in table.rows]
    judged_as = f"path {table.path}" if table.path else "no fallback on this device"
    caption = f"{table.engine}, judged as: {judged_as}; expected slots without a value leave the path unproven"
    return [Table(["slot", "value", "state", "expected", "evidence", "cure"], rows, caption)]


def _row(row: SlotRow) -> list[Cell | str]:
    tone = VERDICT_TONES[row.verdict] if row.counts else PLAIN
    evidence = "; ".join(map(str, row.sightings)) or row.reason
    return [row.slot, row.value, Cell(row.state.value, tone), row.expected, evidence, _cure(row)]


def _cure(row: SlotRow) -> str:
    return row.cure if row.counts and row.state in (SlotState.NOT_SEEN, SlotState.CONTRADICTED) else ""
