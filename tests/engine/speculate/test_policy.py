"""The choice whether to draft: by cost and acceptance, always, or now and then to learn."""

import pytest

from firesteel.engine.speculate import allowance
from firesteel.engine.speculate.acceptance import Acceptance
from firesteel.engine.speculate.policy import (
    CHECK_EVERY,
    CHECKED_STEPS,
    DUE_CHOICES,
    PROBE_EVERY,
    DraftPolicy,
    StepTime,
)
from firesteel.engine.statistics import Statistics
from firesteel.types import Plan, Request, SamplingParams, Span, SpanResult


def new_policy(measured, *, adapts=True, most_rows=8):
    policy = DraftPolicy(most_rows=most_rows, adapts=adapts, totals=Statistics(), measure=lambda: measured)
    policy.start()
    return policy


CHEAP, DEAR = {1: 1.0, 8: 1.2}, {1: 1.0, 8: 20.0}


def test_cheap_rows_are_used_and_dear_ones_are_not():
    assert new_policy(CHEAP).choose([[0.6, 0.4]]) == [2]
    assert new_policy(DEAR).choose([[0.6, 0.4]]) == [0]


def test_policy_that_does_not_adapt_takes_all_that_fit():
    policy = new_policy(DEAR, adapts=False, most_rows=5)
    assert policy.choose([[0.1, 0.05], []]) == [2, 0]
    assert sum(policy.choose([[0.9, 0.8], [0.7, 0.6]])) == 3


def choose_often(policy, count):
    """Returns the tokens drafted at each of some choices, none of which should be made by cost."""
    return [sum(policy.choose([[0.5, 0.2], [0.3]])) for _ in range(count)]


def verify(policy, *, ms=20.0, following=()):
    policy.count(Plan(spans=[span((4,))]), [SpanResult(token_id=4, following=following)], StepTime(ms=ms))


def rest(policy, count=1000):
    for _ in range(count):
        policy.count_plain(1, StepTime(ms=1.0))


def test_refused_drafts_are_tried_once_in_a_while_and_less_often_each_time():
    """A probe was due for one choice only, and steps launched ahead took that choice away from it."""
    policy, interval = new_policy(DEAR), PROBE_EVERY[0]
    for _ in range(6):
        assert choose_often(policy, interval + 3) == [0] * (interval - 1) + [2] * 4
        verify(policy)
        rest(policy)
        interval = min(2 * interval, PROBE_EVERY[1])
    assert policy.reasons == {"no gain expected": 6 + 12 + 24 + 48 + 96 + 128 - 6, "probe": 24}


def test_probe_that_cannot_be_made_does_not_stay_due():
    policy = new_policy(DEAR)
    tried = choose_often(policy, 2 * PROBE_EVERY[0] + DUE_CHOICES)
    assert tried.count(2) == DUE_CHOICES + 1 and tried[-1] == 0


def test_probe_that_gained_is_followed_by_the_next_one_at_once():
    policy = new_policy(DEAR)
    choose_often(policy, PROBE_EVERY[0])
    verify(policy, ms=1.5, following=[SpanResult(token_id=5)])
    assert choose_often(policy, 1) == [2]


def test_drafts_that_lost_time_stop_until_it_is_made_up_for():
    """Costs and chances promised a gain; what steps took decides."""
    policy = new_policy(CHEAP)
    rest(policy, 1)
    good, lost = [[0.9, 0.8]], 0
    while policy.choose(good) != [0]:
        verify(policy, ms=2.0)
        policy.verifying, lost = new_policy(CHEAP).verifying, lost + 1
    assert lost == pytest.approx(allowance.FIRST_STEPS, abs=1) and policy.reasons["lost more than allowed"] == 1
    left = allowance.AGAIN_STEPS - policy.allowance.steps
    rest(policy, int(left / allowance.SHARE))
    assert policy.choose(good) == [0]
    rest(policy, 1)
    assert policy.choose(good) != [0]


def test_single_long_step_does_not_spend_the_allowance():
    policy = new_policy(CHEAP)
    rest(policy, 1)
    verify(policy, ms=1000.0)
    assert policy.allowance.steps > allowance.FIRST_STEPS - 2


def test_probes_wait_for_an_allowance():
    policy = new_policy(DEAR)
    policy.allowance.count(100.0, 1.0, 1.0)
    assert choose_often(policy, 300) == [0] * 300
    rest(policy)
    assert 2 in choose_often(policy, PROBE_EVERY[1] + 1)


@pytest.mark.parametrize("can_rest", [True, False])
def test_plain_steps_are_timed_now_and_then_though_drafts_pay(can_rest):
    policy = new_policy(CHEAP)
    chosen = []
    for _ in range(CHECK_EVERY[0]):
        chosen.append(sum(policy.choose([[0.9, 0.8]], can_rest=can_rest)))
        verify(policy, ms=1.0, following=[SpanResult(token_id=5)])
    assert 0 not in chosen
    for _ in range(CHECKED_STEPS if can_rest else 0):
        assert policy.choose([[0.9, 0.8]], can_rest=can_rest) == [0]
        rest(policy, 1)
    assert policy.choose([[0.9, 0.8]], can_rest=can_rest) != [0]


def test_delay_of_a_step_without_drafts_counts_as_lost():
    policy = new_policy(CHEAP)
    policy.count_waited(1, StepTime(ms=1.5), is_followed=False)
    assert policy.allowance.steps == pytest.approx(allowance.FIRST_STEPS - 0.5 + allowance.SHARE)
    assert policy.verifying.predict(1) == 1.0
    policy.count_waited(1, StepTime(ms=1.5), is_followed=True)
    assert policy.verifying.predict(1) > 1.0


def test_wrong_measurement_of_all_steps_is_found_by_steps_of_a_network():
    """Plain steps do not run while a network follows all requests: those that it follows tell what was wrong."""
    policy = new_policy({1: 2.0, 8: 8.0})
    for _ in range(100):
        policy.count_waited(1, StepTime(ms=1.3, before_ms=0.3), is_followed=True)
    assert policy.plain.predict(1) == pytest.approx(1.0, rel=0.02)
    assert policy.verifying.predict(1) == pytest.approx(1.3, rel=0.02)


def test_why_something_is_drafted_is_told():
    policy = new_policy({1: 1.0, 2: 1.5, 8: 4.0})
    policy.overall[0].add(3, 1)
    policy.choose([policy.overall[0].chances(3)])
    told = policy.describe()
    assert told["choices"] == {"drafted": 1} and told["plain_ms"] == 1.0
    assert told["verifying_ms"][2] == 1.5 and list(told["verifying_ms"]) == list(range(1, 9))
    chance = told["accepted_up_to"]["0"][0]
    assert told["expected_gain"]["0"][0] == pytest.approx((1 + chance) / 1.5)
    assert len(told["expected_gain"]["0"]) == 7
    policy.forget()
    assert policy.describe()["choices"] == policy.describe()["expected_gain"] == {}


def test_first_drafts_are_tried():
    """Nothing was drafted on the H200 when the first chance was 0.6."""
    policy = new_policy({1: 1.65, 2: 2.38, 4: 3.31, 8: 5.22})
    assert policy.choose([Acceptance().chances(7)])[0] > 0


def test_steps_are_measured_once():
    calls = []
    policy = DraftPolicy(most_rows=8, adapts=True, totals=Statistics(), measure=lambda: calls.append(1) or CHEAP)
    policy.start()
    policy.start()
    assert calls == [1]


def span(drafts, token_ids=(1, 2, 3)):
    request = Request(request_id="a", token_ids=token_ids, params=SamplingParams())
    return Span(
        request=request,
        token_ids=token_ids,
        start=2,
        end=3,
        full_pages=[],
        window_pages=[],
        num_logits=1 + len(drafts),
        draft_ids=drafts,
    )


def test_counters_tell_positions_and_time_saved():
    policy = new_policy({1: 10.0, 2: 10.0, 8: 10.0})
    following = [SpanResult(token_id=5), SpanResult(token_id=6)]
    plan = Plan(spans=[span((4, 5, 9)), span(()), span((7,))])
    results = [SpanResult(token_id=4, following=following), SpanResult(token_id=1), SpanResult(token_id=2)]
    policy.count(plan, results, StepTime(ms=12.0))
    totals = policy.totals
    assert (totals.drafts, totals.draft_tokens, totals.accepted_tokens) == (2, 4, 2)
    assert totals.accepted_at == [1, 1, 0]
    assert totals.draft_saved_s == pytest.approx((5 / 3 * 10.0 - 12.0) / 1e3)
    assert policy.verifying.predict(7) > 10.0
