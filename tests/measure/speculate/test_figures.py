"""Cost of verifying steps in plain steps, break-even acceptance, and speeds at an acceptance."""

import pytest

from firesteel.measure.roofline.roofline import RooflineError
from firesteel.measure.speculate.figures import VerifyCase, VerifyCost, compute_gain, list_gains


def cost(rows, ms, *, requests=1, context=8):
    case = VerifyCase(requests=requests, rows=rows, context=context)
    return VerifyCost(case=case, way="w", samples_ms=(ms, 9 * ms, ms / 9), predicted_cost=1.0)


def test_cost_is_stated_in_plain_steps_of_the_median():
    gain = compute_gain(cost(1, 2.0), cost(4, 5.0), ())
    assert gain.cost == 2.5 and gain.case.drafted == 3 and gain.speeds == ()
    assert gain.as_dict()["cost_in_steps"] == 2.5 and gain.as_dict()["plain_ms"] == 2.0


def test_speed_is_tokens_of_all_requests_by_the_time_of_the_step():
    gain = compute_gain(cost(1, 2.0, requests=2), cost(3, 5.0, requests=2), (0.0, 0.5, 1.0))
    lengths = [speed.length for speed in gain.speeds]
    assert lengths == [1.0, 1.75, 3.0]
    assert [speed.tok_s for speed in gain.speeds] == pytest.approx([400, 700, 1200])
    assert [speed.speedup for speed in gain.speeds] == pytest.approx([0.4, 0.7, 1.2])  # plain: 1000 tok/s


def test_speed_at_break_even_acceptance_is_that_of_plain_steps():
    plain, verifying = cost(1, 2.0), cost(4, 5.0)
    even = compute_gain(plain, verifying, ()).speculation.break_even()
    [speed] = compute_gain(plain, verifying, (even,)).speeds
    assert speed.speedup == pytest.approx(1) and speed.tok_s == pytest.approx(500)


def test_step_that_costs_more_than_its_rows_never_gains():
    gain = compute_gain(cost(1, 2.0), cost(2, 4.1), (1.0,))
    assert gain.as_dict()["break_even_acceptance"] is None and gain.speeds[0].speedup < 1


def test_drafting_adds_its_time_per_drafted_token():
    gain = compute_gain(cost(1, 2.0), cost(3, 5.0), (1.0,), draft_ms=0.5)
    assert gain.cost == 3.0 and gain.step_ms == 5.0 and gain.speeds[0].speedup == pytest.approx(1)


def test_steps_are_compared_with_plain_ones_of_the_same_requests_and_depth():
    costs = [
        cost(1, 1.0),
        cost(2, 1.5),
        cost(1, 4.0, requests=2),
        cost(2, 5.0, requests=2),
        cost(2, 7.0, context=9),
    ]
    gains = list_gains(costs, ())
    assert [(gain.case.requests, gain.case.context, gain.cost) for gain in gains] == [(1, 8, 1.5), (2, 8, 1.25)]


def test_acceptance_beyond_one_is_refused():
    with pytest.raises(RooflineError, match="must lie between 0 and 1"):
        compute_gain(cost(1, 1.0), cost(2, 1.5), (1.5,))
