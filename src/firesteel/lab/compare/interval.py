"""Estimates the change between two sets of samples, with a confidence interval.

Samples are compared by their logarithms: a change is a ratio of geometric means, its interval is Welch's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy

CONFIDENCE = 0.95
NEARLY_NORMAL = 200.0  # degrees of freedom above which the normal distribution replaces Student's
STEPS = 20_001


def estimate(
    before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Returns the change and the ends of its interval, as shares of before."""
    old, new = ([math.log(value) for value in values if value > 0] for values in (before, after))
    if not old or not new:
        return 0.0, -math.inf, math.inf
    difference = statistics.fmean(new) - statistics.fmean(old)
    if len(old) < 2 or len(new) < 2:
        return math.expm1(difference), -math.inf, math.inf
    parts = [statistics.variance(values) / len(values) for values in (old, new)]
    error = math.sqrt(sum(parts))
    if error == 0.0:
        return (math.expm1(difference),) * 3
    squares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (old, new), strict=True))
    reach = student(sum(parts) ** 2 / squares, confidence) * error
    return math.expm1(difference), math.expm1(difference - reach), math.expm1(difference + reach)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Returns the ends of the interval of the geometric mean; None if there are fewer than two positive samples."""
    logarithms = [math.log(value) for value in values if value > 0]
    if len(logarithms) < 2:
        return None
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    reach = student(len(logarithms) - 1, confidence) * error
    middle = statistics.fmean(logarithms)
    return math.exp(middle - reach), math.exp(middle + reach)


def share_confidence(count: int) -> float:
    """Returns the confidence of each of several intervals that hold at once with CONFIDENCE (Bonferroni)."""
    return 1.0 - (1.0 - CONFIDENCE) / max(1, count)


def student(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Returns the two-sided quantile of Student's distribution.

    Its density is integrated over the angle atan(t / sqrt(freedom)).
    """
    above = (1.0 + confidence) / 2.0
    if freedom > NEARLY_NORMAL:
        return statistics.NormalDist().inv_cdf(above)
    angles = numpy.linspace(0.0, math.pi / 2, STEPS)
    weights = numpy.cumsum(numpy.cos(angles) ** (freedom - 1.0))
    angle = numpy.interp(2.0 * above - 1.0, (weights - weights[0]) / (weights[-1] - weights[0]), angles)
    return math.sqrt(freedom) * math.tan(float(angle))
