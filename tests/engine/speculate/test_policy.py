"""The choice whether to draft: by cost and acceptance, always, or now and then to learn."""

import pytest

from firesteel.engine.speculate.acceptance import Acceptance
from firesteel.engine.speculate.policy import PROBE_CHOICES, PROBE_EVERY, DraftPolicy
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


def test_refused_drafts_are_tried_once_in_a_while():
    """A probe was due for one choice only, and steps launched ahead took that choice away from it."""
    policy = new_policy(DEAR)
    for _ in range(2):
        assert choose_often(policy, PROBE_EVERY + 3) == [0] * (PROBE_EVERY - 1) + [2] * 4
        policy.count(Plan(spans=[span((4,))]), [SpanResult(token_id=1)], 20.0)


def test_probe_that_cannot_be_made_does_not_stay_due():
    policy = new_policy(DEAR)
    tried = choose_often(policy, 2 * PROBE_EVERY)
    assert tried.count(2) == PROBE_CHOICES + 1 and tried[-1] == 0


def test_first_drafts_are_tried_though_measured_steps_seem_slow():
    """Measured steps contain the host's share, which steps launched ahead hide; a chance of 0.6 drafts nothing."""
    policy = new_policy({1: 1.95, 2: 2.8, 4: 3.75, 8: 5.6})
    for _ in range(50):
        policy.plain.learn(1, 1.66)
    assert policy.choose([Acceptance().chances(7)])[0] > 0
    assert policy.choose([[0.6, 0.36, 0.216, 0.13]]) == [0]


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
    policy.count(plan, results, 12.0)
    totals = policy.totals
    assert (totals.drafts, totals.draft_tokens, totals.accepted_tokens) == (2, 4, 2)
    assert totals.accepted_at == [1, 1, 0]
    assert totals.draft_saved_s == pytest.approx((5 / 3 * 10.0 - 12.0) / 1e3)
    assert policy.verifying.predict(7) > 10.0
