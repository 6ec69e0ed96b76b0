"""The change of a matrix cell against the baseline: better, worse, or inside the noise of the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.lab.compare.compare import FASTER, SLOWER, THRESHOLD, judge
from firesteel.lab.compare.interval import estimate, share_confidence
from firesteel.lab.matrix.result import DONE, LOWER_IS_BETTER, CellOutcome, MatrixResult

MEASURED_ONCE = 0.10  # change from which a figure without repeats, such as start-up, counts
STRONGEST = math.log(1.25)  # change of the strongest colour, unless others are larger


@dataclass(frozen=True, slots=True)
class CellChange:
    share: float  # of the baseline: 0.05 is 5 % more
    heat: float  # -1 worst, 0 inside the noise, 1 best


def find_baseline(measured: MatrixResult) -> CellOutcome | None:
    """Returns the first cell that was measured: its gates have their first values."""
    return next((cell for cell in measured.cells if cell.status == DONE and cell.figures), None)


def compare_cells(measured: MatrixResult, figure: str) -> dict[int, CellChange]:
    """Returns the change of each cell but the baseline that has the figure, by the cell's position."""
    baseline = find_baseline(measured)
    if baseline is None or not baseline.figures.get(figure):
        return {}
    is_higher_better = figure not in LOWER_IS_BETTER
    others = {
        number: cell
        for number, cell in enumerate(measured.cells)
        if cell is not baseline and cell.figures.get(figure)
    }
    confidence = share_confidence(len(others))
    changes = {}
    for number, cell in others.items():
        share = cell.figures[figure] / baseline.figures[figure] - 1.0
        old, new = baseline.samples.get(figure, ()), cell.samples.get(figure, ())
        verdict = _judge(share, old, new, confidence, is_higher_better=is_higher_better)
        direction = {FASTER: 1.0, SLOWER: -1.0}.get(verdict, 0.0)
        changes[number] = CellChange(share, direction * abs(math.log1p(share)))
    strongest = max([STRONGEST, *(abs(change.heat) for change in changes.values())])
    return {number: CellChange(change.share, change.heat / strongest) for number, change in changes.items()}


def _judge(
    share: float, old: Sequence[float], new: Sequence[float], confidence: float, *, is_higher_better: bool
) -> str:
    if len(old) < 2 or len(new) < 2:
        return judge(share, share, share, MEASURED_ONCE, is_higher_better=is_higher_better)
    _, low, high = estimate(old, new, confidence)
    return judge(share, low, high, THRESHOLD, is_higher_better=is_higher_better)
