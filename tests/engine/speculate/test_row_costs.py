"""Expected duration of a step by its rows."""

import pytest

from firesteel.engine.speculate.row_costs import OUTLIER, RowCosts


def test_rows_between_measured_ones_are_interpolated():
    costs = RowCosts({8: 3.0, 1: 1.0, 4: 2.0})
    assert [costs.predict(rows) for rows in (1, 2, 4, 6, 8)] == pytest.approx([1, 4 / 3, 2, 2.5, 3])


def test_time_beyond_the_largest_grows_in_proportion():
    assert RowCosts({1: 1.0, 8: 3.0}).predict(16) == 6.0


def test_measured_steps_change_what_is_expected():
    costs = RowCosts({1: 1.0, 8: 8.0})
    for _ in range(100):
        costs.learn(4, 2.0)
    assert costs.predict(4) == pytest.approx(2.0, rel=0.01)
    assert costs.predict(1) == 1.0 and costs.predict(8) == 8.0


def test_single_long_step_counts_as_an_outlier():
    costs, same = RowCosts({1: 1.0}), RowCosts({1: 1.0})
    costs.learn(1, 1000.0)
    same.learn(1, OUTLIER)
    assert costs.predict(1) == same.predict(1) < OUTLIER
