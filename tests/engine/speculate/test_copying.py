"""Copies are drafted where a text repeats, if they pay, and steps wait for tokens only there."""

import pytest

from firesteel.engine.speculate.allowance import FIRST_STEPS
from firesteel.engine.speculate.copying import MOST_COPIED, CopyingSpeculator
from firesteel.engine.speculate.policy import DraftPolicy, StepTime
from firesteel.engine.statistics import Statistics
from firesteel.types import Plan, SpanResult
from tests.engine.speculate.jobs import CHEAP, DEAR, Mask, new_job, plan_of

REPEATING, OTHER = [1, 2, 3, 4, 5, 1, 2, 3], [1, 2, 3, 4, 5, 6, 7]


def new_speculator(jobs, measured=CHEAP, **options):
    policy = DraftPolicy(most_rows=8, adapts=True, totals=Statistics(), measure=lambda: measured)
    policy.start()
    held = {id(job.token_ids): job for job in jobs}
    return CopyingSpeculator(policy, lambda span: held.get(id(span.token_ids)), **options)


def test_repeating_text_is_copied():
    job, other = new_job("a", REPEATING), new_job("b", OTHER)
    speculator = new_speculator([job, other])
    assert speculator.waits(plan_of(job, other))
    [drafts, none] = speculator.find_drafts([job, other])
    assert none == () and 1 <= len(drafts) <= MOST_COPIED
    assert list(drafts) == [4, 5, 1, 2, 3, 4, 5][: len(drafts)]


def test_at_most_the_asked_number_is_copied():
    job = new_job("a", REPEATING)
    assert new_speculator([job], most=2).find_drafts([job]) == [[4, 5]]


@pytest.mark.parametrize(("tokens", "measured"), [(OTHER, CHEAP), (REPEATING, DEAR)], ids=["nothing", "too dear"])
def test_steps_run_ahead_where_no_copy_pays(tokens, measured):
    job = new_job("a", tokens)
    speculator = new_speculator([job], measured)
    assert not speculator.waits(plan_of(job))
    assert speculator.find_drafts([job]) == [()]


def test_request_that_has_ended_is_forgotten():
    job = new_job("a", REPEATING)
    speculator = new_speculator([])
    assert not speculator.waits(plan_of(job))
    speculator = new_speculator([job])
    speculator.waits(plan_of(job))
    speculator.drop("a")
    speculator.drop("never seen")
    assert not speculator._texts


def test_other_request_of_the_same_name_has_its_own_text():
    first, second = new_job("a", REPEATING), new_job("a", OTHER)
    speculator = new_speculator([first, second])
    assert speculator.find_drafts([first]) != [()]
    assert speculator.find_drafts([second]) == [()]


def test_copy_ends_where_the_grammar_does_not_allow_it():
    job = new_job("a", [1, 2, 3, 4, 6, 7, 1, 2, 3], Mask())
    assert new_speculator([job]).find_drafts([job]) == [[4, 6]]


def test_wrong_copies_stop_being_drafted():
    job = new_job("a", REPEATING)
    speculator = new_speculator([job], {1: 1.0, 2: 1.3, 8: 2.5})
    lengths = []
    for _ in range(40):
        [drafts] = speculator.find_drafts([job])
        lengths.append(len(drafts))
        plan = Plan(spans=[job.span(len(job.token_ids), drafts)])
        speculator.follow(plan, [SpanResult(token_id=9)], None)
        speculator._chosen = [], []  # as if the text had grown
    assert lengths[0] > 1 and 0 in lengths and max(lengths[lengths.index(0) :]) == 1, "probes have one token"


def test_plain_steps_teach_what_they_cost():
    job = new_job("a", OTHER)
    speculator = new_speculator([job])
    for _ in range(200):
        speculator.count(plan_of(job), [SpanResult(token_id=1)], StepTime(ms=3.0))
        speculator.count(plan_of(job), [SpanResult(token_id=1)], StepTime(ms=9.0, is_steady=False))
    assert speculator.policy.plain.predict(1) == pytest.approx(3.0, rel=0.01), "the host's share is in the others"
    assert speculator.policy.allowance.steps > FIRST_STEPS, "no drafts delayed them"
    drafted = Plan(spans=[job.span(len(job.token_ids), [5])])
    speculator.count(drafted, [SpanResult(token_id=1)], StepTime(ms=3.0))
    before = speculator.policy.allowance.steps
    speculator.count(plan_of(job), [SpanResult(token_id=1)], StepTime(ms=4.5, is_steady=False))
    assert speculator.policy.allowance.steps == pytest.approx(before - 0.5, abs=0.02)
