"""The section on a matrix: a heat map per figure, and a table of all cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.lab.matrix.gates import name_choice
from firesteel.lab.matrix.result import DONE, CellOutcome
from firesteel.lab.report.charts import short
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, Cell, Fold, Paragraph, Part, Raw, Table
from firesteel.lab.result import LabResult


def matrix(result: LabResult) -> list[Part]:
    """Shows the first gate along the rows, the others across the columns."""
    measured = result.any_matrix
    if measured is None or not measured.cells:
        return []
    gates = list(measured.gates)
    words = [Paragraph(measured.words)] if measured.words else []
    maps = [_heat_map(measured.cells, gates, figure, unit) for figure, unit in measured.figures.items()]
    return [
        *words,
        *maps,
        Fold("every cell", [_cell_table(measured.cells, gates)]),
        Raw("matrix", measured.as_dict()),
    ]


def _heat_map(cells: Sequence[CellOutcome], gates: Sequence[str], figure: str, unit: str) -> Table:
    side, across = gates[0], gates[1:]
    columns = list(dict.fromkeys(_label(cell.gates, across) for cell in cells))
    names = list(dict.fromkeys(cell.gates[side] for cell in cells))
    known = {(cell.gates[side], _label(cell.gates, across)): cell for cell in cells}
    values = [cell.figures[figure] for cell in cells if figure in cell.figures]
    low, high = min(values, default=0.0), max(values, default=1.0)
    rows: list[list[Cell | str]] = [
        [f"{side}={name}", *(_heat(known.get((name, column)), figure, low, high) for column in columns)]
        for name in names
    ]
    headings = [f"{figure} ({unit})", *(column or "value" for column in columns)]
    return Table(headings, rows, "a stronger colour means a higher value")


def _heat(cell: CellOutcome | None, figure: str, low: float, high: float) -> Cell:
    if cell is None:
        return Cell("not run", DOUBTFUL, heat=0.0)
    if cell.status != DONE:
        return Cell(cell.status, BAD, heat=0.0)
    value = cell.figures.get(figure)
    if value is None:
        return Cell("-", heat=0.0)
    return Cell(short(value), heat=(value - low) / (high - low) if high > low else 0.5)


def _cell_table(cells: Sequence[CellOutcome], gates: Sequence[str]) -> Table:
    figures = list(dict.fromkeys(name for cell in cells for name in cell.figures))
    rows: list[list[Cell | str]] = [
        [
            *(cell.gates[gate] for gate in gates),
            Cell(cell.status, GOOD if cell.status == DONE else BAD),
            *(short(cell.figures[name]) if name in cell.figures else "" for name in figures),
            cell.reason,
        ]
        for cell in cells
    ]
    return Table([*gates, "status", *figures, "reason"], rows)


def _label(chosen: Mapping[str, str], gates: Sequence[str]) -> str:
    return name_choice({gate: chosen[gate] for gate in gates})
