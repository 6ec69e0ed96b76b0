"""The section on a matrix: its winner, a heat map per figure against the baseline, and a row per cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.lab.matrix.gates import name_choice
from firesteel.lab.matrix.result import (
    CONFIGURATION,
    DONE,
    LOWER_IS_BETTER,
    RANKED_BY,
    CellOutcome,
    MatrixResult,
)
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, Cell, Fold, Paragraph, Part, Table
from firesteel.lab.report.headline import VERDICT_TONES
from firesteel.lab.report.number_format import precise, signed_percent
from firesteel.lab.report.sections.cell_change import CellChange, compare_cells, find_baseline
from firesteel.lab.result import LabResult

FIGURE_WORDS = {
    "tg_tok_s": "generation",
    "pp_tok_s": "prompts",
    "ttft_ms": "TTFT",
    "peak_memory_gb": "peak memory",
    "startup_s": "start-up",
}
BEST = "★"
Changes = Mapping[str, Mapping[int, CellChange]]  # figure -> position of the cell -> its change


def matrix(result: LabResult) -> list[Part]:
    """Shows heat maps of two or more gates; of one gate, or of configurations, the table of cells is one itself."""
    measured = result.any_matrix
    if measured is None or not measured.cells:
        return []
    changes = {figure: compare_cells(measured, figure) for figure in measured.figures}
    parts: list[Part] = [] if measured is result.matrix else [Paragraph(measured.words)]
    parts += _name_winner(measured, changes)
    table = _cell_table(measured, changes)
    if len(measured.gates) < 2 or CONFIGURATION in measured.gates:
        return [*parts, Paragraph(_explain_colours(measured)), table]
    maps = [_heat_map(measured, figure, changes[figure]) for figure in measured.figures]
    return [*parts, Paragraph(_explain_colours(measured)), *maps, Fold("every cell", [table])]


def _name_winner(measured: MatrixResult, changes: Changes) -> list[Part]:
    """Names the fastest cell among those with a rank, and what its speed is compared with."""
    best = next((number for number, cell in enumerate(measured.cells) if cell.rank == 1), None)
    if best is None:
        return [Paragraph("No cell has a rank: only proven cells are ranked", DOUBTFUL)]
    cell, change = measured.cells[best], changes.get(RANKED_BY, {}).get(best)
    words = f"{BEST} Fastest: {_label(cell)}, {precise(cell.figures[RANKED_BY])} {measured.figures[RANKED_BY]}"
    if cell is find_baseline(measured):
        return [Paragraph(f"{words}, which is the baseline", GOOD)]
    if change is None:
        return [Paragraph(words, GOOD)]
    noise = "" if change.heat else ", inside the noise"
    return [Paragraph(f"{words}, {signed_percent(change.share)} from the baseline{noise}", GOOD)]


def _explain_colours(measured: MatrixResult) -> str:
    baseline = find_baseline(measured)
    if baseline is None:
        return "No cell was measured, so there is no baseline."
    return (
        f"Compared with {_label(baseline)}. Blue is better, orange is worse, grey is inside the noise of the runs; "
        f"{BEST} is the best of the ranked cells. What was measured once has no known noise, and so no colour."
    )


def _heat_map(measured: MatrixResult, figure: str, changes: Mapping[int, CellChange]) -> Table:
    """Puts the first gate along the rows, the others across the columns."""
    side, *across = measured.gates
    known = {
        (cell.gates[side], _choice(cell.gates, across)): _value(measured, number, figure, changes)
        for number, cell in enumerate(measured.cells)
    }
    columns = list(dict.fromkeys(column for _, column in known))
    rows: list[list[Cell | str]] = [
        [name, *(known.get((name, column), Cell("not run", DOUBTFUL, heat=0.0)) for column in columns)]
        for name in dict.fromkeys(row for row, _ in known)
    ]
    return Table([side, *columns], rows, title=_name_figure(figure, measured.figures[figure]))


def _name_figure(figure: str, unit: str) -> str:
    hint = ", lower is better" if figure in LOWER_IS_BETTER else ""
    return f"{FIGURE_WORDS.get(figure, figure)}, {unit}{hint}"


def _value(measured: MatrixResult, number: int, figure: str, changes: Mapping[int, CellChange]) -> Cell:
    cell = measured.cells[number]
    value = cell.figures.get(figure)
    if cell.status != DONE or value is None:
        return Cell(cell.status if cell.status != DONE else "-", BAD if cell.status != DONE else "", heat=0.0)
    text = f"{BEST} {precise(value)}" if number == find_winner(measured, figure) else precise(value)
    if cell is find_baseline(measured):
        return Cell(text, heat=0.0, note="baseline")
    change = changes.get(number)
    if change is None:
        return Cell(text, heat=0.0)
    if cell.unranked and any(not other.unranked for other in measured.cells):
        return Cell(text, heat=0.0, note=f"{signed_percent(change.share)}, no rank")
    return Cell(text, heat=change.heat, note=_describe(change))


def find_winner(measured: MatrixResult, figure: str) -> int | None:
    """Returns the position of the best ranked cell; None if cells share the value or it was measured once."""
    best = measured.find_best(figure)
    ranked = [number for number, cell in enumerate(measured.cells) if not cell.unranked]
    winners = [number for number in ranked if measured.cells[number].figures.get(figure) == best]
    is_repeated = all(len(measured.cells[number].samples.get(figure, ())) > 1 for number in winners)
    return winners[0] if len(winners) == 1 and (is_repeated or figure == RANKED_BY) else None


def _describe(change: CellChange) -> str:
    """Returns the change in words; colours alone would say it to some readers only."""
    verdict = "better" if change.heat > 0 else "worse" if change.heat else "noise" if change.is_repeated else "once"
    return f"{signed_percent(change.share)}, {verdict}"


def _cell_table(measured: MatrixResult, changes: Changes) -> Table:
    figures = list(measured.figures)
    headings = ["cell", "rank", "verdict", *(_name_figure(name, measured.figures[name]) for name in figures)]
    headings += ["kernel path", "variables", "why"]
    rows: list[list[Cell | str]] = [
        [
            Cell(_label(cell), link=f"{cell.folder}/report.html" if cell.folder else ""),
            "" if cell.rank is None else str(cell.rank),
            _verdict(cell),
            *(_value(measured, number, name, changes[name]) if cell.status == DONE else "" for name in figures),
            "" if cell.slots is None else cell.slots.in_words(),
            "\n".join(f"{name}={value}" for name, value in cell.environment.items()),
            "\n".join(dict.fromkeys(words for words in (cell.reason, cell.unranked) if words)),
        ]
        for number, cell in enumerate(measured.cells)
    ]
    return Table(headings, rows).without_empty_columns()


def _verdict(cell: CellOutcome) -> Cell:
    if cell.status != DONE:
        return Cell(cell.status, BAD)
    return Cell(cell.verdict.value, VERDICT_TONES[cell.verdict])


def _label(cell: CellOutcome) -> str:
    rest = {gate: value for gate, value in cell.gates.items() if gate != CONFIGURATION}
    return ", ".join(word for word in (cell.configuration, name_choice(rest)) if word)


def _choice(chosen: Mapping[str, str], gates: Sequence[str]) -> str:
    return name_choice({gate: chosen[gate] for gate in gates})
