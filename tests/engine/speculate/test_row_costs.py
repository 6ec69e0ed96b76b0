"""Expected duration of a step by its rows."""

import pytest

from firesteel.engine.speculate.row_costs import FIRST_STEPS, OUTLIER, RowCosts


def test_rows_between_measured_ones_are_interpolated():
    costs = RowCosts({8: 3.0, 1: 1.0, 4: 2.0})
    assert [costs.predict(rows) for rows in (1, 2, 4, 6, 8)] == pytest.approx([1, 4 / 3, 2, 2.5, 3])


def test_time_beyond_the_largest_grows_in_proportion():
    assert RowCosts({1: 1.0, 8: 3.0}).predict(16) == 6.0


def test_steps_that_ran_change_what_is_expected():
    costs = RowCosts({1: 1.0, 8: 8.0})
    for _ in range(200):
        costs.learn(4, 2.0)
        costs.learn(1, 1.0)
    assert costs.predict(4) == pytest.approx(2.0, rel=0.01) and costs.predict(1) == pytest.approx(1.0, rel=0.02)
    assert costs.known() == {rows: costs.predict(rows) for rows in (1, 4, 8)}


@pytest.mark.parametrize("wrong", [0.5, 2.0])
def test_error_of_all_measured_times_is_found_by_steps_of_one_size(wrong):
    costs = RowCosts({1: 1.0, 8: 8.0})
    for _ in range(FIRST_STEPS):
        costs.learn(1, wrong)
    assert costs.predict(1) == pytest.approx(wrong, rel=0.03) and costs.predict(8) == pytest.approx(
        8 * wrong, rel=0.03
    )


def test_factor_of_another_is_adopted_until_a_step_ran():
    costs, other = RowCosts({1: 1.0}), RowCosts({1: 1.0})
    other.learn(1, 2.0)
    costs.adopt(other)
    assert costs.predict(1) == other.predict(1) > 1.5
    costs.learn(1, 1.0)
    adopted = costs.predict(1)
    other.learn(1, 2.0)
    costs.adopt(other)
    assert costs.predict(1) == adopted


def test_single_long_step_counts_as_an_outlier():
    costs, same = RowCosts({1: 1.0}), RowCosts({1: 1.0})
    costs.learn(1, 1000.0)
    same.learn(1, OUTLIER)
    assert costs.predict(1) == same.predict(1) < OUTLIER
