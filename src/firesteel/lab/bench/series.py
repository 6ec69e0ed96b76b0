"""The samples of one figure, with their median, spread and percentiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from firesteel.measure.timing import spread

HIGHER, LOWER = "higher", "lower"
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    unit: str
    better: str  # HIGHER or LOWER
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """The population standard deviation, as llama-benchy reports it."""
        return statistics.pstdev(self.values)

    def percentile(self, percent: float) -> float:
        return float(numpy.percentile(self.values, percent))

    def as_dict(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "better": self.better,
            "values": [round(value, 6) for value in self.values],
            "mean": self.mean,
            "std": self.std,
            "spread": spread(self.values),
            **{f"p{percent}": self.percentile(percent) for percent in PERCENTILES},
        }


def in_ms(seconds: Sequence[float]) -> Series:
    return Series(unit="ms", better=LOWER, values=tuple(1e3 * value for value in seconds))


def in_tok_s(values: Sequence[float]) -> Series:
    return Series(unit="tok/s", better=HIGHER, values=tuple(values))
