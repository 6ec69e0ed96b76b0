"""The change of a matrix cell against the baseline: better, worse, or inside the noise of the runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from firesteel.lab.compare.compare import FASTER, SLOWER, THRESHOLD, judge
from firesteel.lab.compare.interval import estimate, share_confidence
from firesteel.lab.matrix.result import DONE, LOWER_IS_BETTER, CellOutcome, MatrixResult

STRONGEST = math.log(1.25)  # change of the strongest colour, unless others are larger


@dataclass(frozen=True, slots=True)
class CellChange:
    share: float  # of the baseline: 0.05 is 5 % more
    heat: float  # -1 worst, 0 inside the noise, 1 best
    is_repeated: bool  # False: measured once, so that its noise is unknown


def find_baseline(measured: MatrixResult) -> CellOutcome | None:
    """Returns the first measured cell that has a rank: figures of a wrong path are no measure for others.

    If none has one, it is the first measured cell.
    """
    done = [cell for cell in measured.cells if cell.status == DONE and cell.figures]
    return next((cell for cell in done if not cell.unranked), done[0] if done else None)


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
        is_repeated = len(old) > 1 and len(new) > 1
        _, low, high = estimate(old, new, confidence) if is_repeated else (share, -math.inf, math.inf)
        verdict = judge(share, low, high, THRESHOLD, is_higher_better=is_higher_better)
        direction = {FASTER: 1.0, SLOWER: -1.0}.get(verdict, 0.0)
        changes[number] = CellChange(share, direction * abs(math.log1p(share)), is_repeated)
    strongest = max([STRONGEST, *(abs(change.heat) for change in changes.values())])
    return {number: replace(change, heat=change.heat / strongest) for number, change in changes.items()}
