"""Duration of decoding steps by their number of rows, measured at start and refined by the steps that ran."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

LAST_WEIGHT = 0.1  # of the last step against all earlier ones of as many rows
SHARED_WEIGHT = 0.05  # the same for what all numbers of rows have in common, after the first steps
MEASURED_WEIGHT = 0.25  # of what was measured at start, in steps
FIRST_STEPS = 16  # that change only what all have in common
OUTLIER = 2.0  # a single step counts at most as this multiple of the expected time


class RowCosts:
    """Milliseconds per step. Rows between two known numbers are interpolated; beyond the largest, in proportion.

    The first steps change the times of all rows by one factor, because what made the measurement wrong, or adds to
    every step, holds for them all.
    """

    def __init__(self, measured_ms: Mapping[int, float]) -> None:
        self._ms = dict(sorted(measured_ms.items()))
        self.factor = 1.0  # of all times against those measured
        self.num_learnt = 0

    def predict(self, rows: int) -> float:
        """Returns the expected milliseconds of a step of `rows`."""
        return self.factor * self._interpolate(rows)

    def limit(self, rows: int, ms: float) -> float:
        """Returns `ms`, as far as a single step of `rows` counts."""
        return min(ms, OUTLIER * self.predict(rows))

    def known(self) -> dict[int, float]:
        """Returns the expected milliseconds by rows, of all numbers that were measured or ran."""
        return {rows: self.predict(rows) for rows in self._ms}

    def learn(self, rows: int, ms: float) -> None:
        """Learns that a step of `rows` took `ms`."""
        self.num_learnt += 1
        weight = max(SHARED_WEIGHT, 1 / (self.num_learnt + MEASURED_WEIGHT))
        self.factor *= 1 + weight * (self._compare(rows, ms) - 1)
        if self.num_learnt > FIRST_STEPS:
            self._ms[rows] = self._interpolate(rows) * (1 + LAST_WEIGHT * (self._compare(rows, ms) - 1))
            self._ms = dict(sorted(self._ms.items()))

    def adopt(self, other: RowCosts) -> None:
        """Takes over the factor of `other` if no step of ours has run yet: the same device was measured."""
        if not self.num_learnt:
            self.factor = other.factor

    def _compare(self, rows: int, ms: float) -> float:
        """Returns `ms` as a multiple of what is expected."""
        return self.limit(rows, ms) / self.predict(rows)

    def _interpolate(self, rows: int) -> float:
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
