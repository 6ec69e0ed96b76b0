"""Samples of one figure with what is usually said of them; knows not what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from firesteel.measure.timing import spread

HIGHER, LOWER = "higher", "lower"


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
        """Of these samples, as llama-benchy gives it: not an estimate for all."""
        return statistics.pstdev(self.values)

    def percentile(self, share: float) -> float:
        return float(numpy.percentile(self.values, share))

    def as_dict(self) -> dict[str, Any]:
        return {
            "unit": self.unit, "better": self.better, "values": [round(value, 6) for value in self.values],
            "mean": self.mean, "std": self.std, "spread": spread(self.values),
            **{f"p{share}": self.percentile(share) for share in (50, 90, 99)},
        }  # fmt: skip

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Series:
        return cls(unit=content["unit"], better=content["better"], values=tuple(content["values"]))


def in_ms(seconds: Sequence[float]) -> Series:
    return Series(unit="ms", better=LOWER, values=tuple(1e3 * one for one in seconds))


def in_tok_s(values: Sequence[float]) -> Series:
    return Series(unit="tok/s", better=HIGHER, values=tuple(values))
