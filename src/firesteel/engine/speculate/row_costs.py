"""Duration of decoding steps by their number of rows, measured at start and refined by the steps that ran."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

LAST_WEIGHT = 0.1  # of the last step against all earlier ones
OUTLIER = 2.0  # a single step counts at most as this multiple of the expected time


class RowCosts:
    """Milliseconds per step. Rows between two known numbers are interpolated; beyond the largest, in proportion."""

    def __init__(self, measured_ms: Mapping[int, float]) -> None:
        self._ms = dict(sorted(measured_ms.items()))

    def predict(self, rows: int) -> float:
        """Returns the expected milliseconds of a step of `rows`."""
        known = list(self._ms)
        place = bisect_left(known, rows)
        if place == len(known):
            return self._ms[known[-1]] * rows / known[-1]
        larger = known[place]
        if place == 0 or larger == rows:
            return self._ms[larger]
        smaller = known[place - 1]
        share = (rows - smaller) / (larger - smaller)
        return self._ms[smaller] + share * (self._ms[larger] - self._ms[smaller])

    def learn(self, rows: int, ms: float) -> None:
        """Learns that a step of `rows` took `ms`."""
        expected = self.predict(rows)
        self._ms[rows] = expected + LAST_WEIGHT * (min(ms, OUTLIER * expected) - expected)
        self._ms = dict(sorted(self._ms.items()))
