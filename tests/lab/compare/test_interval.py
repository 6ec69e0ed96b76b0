"""Intervals of changes, compared with tables and with simulations."""

import math
import random

import pytest

from firesteel.lab.compare.interval import estimate, mean_interval, share_confidence, student


@pytest.mark.parametrize(
    ("freedom", "confidence", "quantile"),
    [
        (2, 0.95, 4.3027),
        (3, 0.95, 3.1824),
        (4, 0.95, 2.7764),
        (8, 0.95, 2.3060),
        (30, 0.95, 2.0423),
        (1000, 0.95, 1.9623),
        (4, 0.998, 7.1732),
        (2, 0.998, 22.327),
        (8, 0.998, 4.5008),
        (1, 0.95, 12.706),
    ],
)
def test_quantiles_match_the_tables(freedom, confidence, quantile):
    assert student(freedom, confidence) == pytest.approx(quantile, rel=0.002)


def test_interval_holds_the_true_change_as_often_as_it_says():
    source, held = random.Random(2), 0
    for _ in range(1000):
        before, after = ([speed * source.gauss(1.0, 0.05) for _ in range(4)] for speed in (100.0, 110.0))
        _, low, high = estimate(before, after)
        held += low <= 0.10 <= high
    assert 0.93 < held / 1000 < 0.975


def test_intervals_that_hold_together_are_wider():
    assert share_confidence(1) == pytest.approx(0.95) and share_confidence(20) == pytest.approx(0.9975)
    before, after = [100.0, 101.0, 99.0], [95.0, 96.0, 94.0]
    _, low, high = estimate(before, after)
    _, lower, higher = estimate(before, after, share_confidence(20))
    assert lower < low < high < higher


def test_interval_of_a_single_sample_is_infinite():
    assert estimate([100.0], [50.0]) == (pytest.approx(-0.5), -math.inf, math.inf)
    assert estimate([], [1.0, 2.0])[1:] == (-math.inf, math.inf)


def test_interval_of_equal_samples_is_a_point():
    assert estimate([100.0, 100.0], [90.0, 90.0]) == (pytest.approx(-0.1),) * 3


def test_interval_of_a_mean_is_students():
    values = [math.exp(value) for value in (1.0, 2.0, 3.0, 4.0)]
    reach = 3.1824 * 1.29099 / 2
    assert mean_interval(values) == pytest.approx((math.exp(2.5 - reach), math.exp(2.5 + reach)), rel=0.003)


@pytest.mark.parametrize("values", [[], [5.0], [0.0, 5.0]])
def test_single_sample_has_no_interval(values):
    assert mean_interval(values) is None
