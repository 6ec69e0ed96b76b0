"""Which requests a draft network follows, and when it is suspected of reading wrong residuals."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from firesteel.config import KernelConfig
from firesteel.device import find_device
from firesteel.engine.speculate import drafting
from firesteel.engine.speculate.draft_store import DraftStore
from firesteel.engine.speculate.drafting import MOST_IDLE, DraftingSpeculator
from firesteel.engine.speculate.policy import DraftPolicy, StepTime
from firesteel.engine.statistics import Statistics
from firesteel.kernels.ledger import Ledger
from firesteel.model.drafters.draft_sizes import DraftSizes
from firesteel.model.drafters.wiring import FEWEST_DRAFTS
from firesteel.model.graphs import StepMemory
from firesteel.types import Plan, SamplingParams, SpanResult, Taps
from tests.engine.speculate.jobs import CHEAP, DEAR, Mask, new_job, plan_of

CPU = find_device("cpu")


class Counter:
    """Drafts 10, 11, 12 for everything."""

    name = "eagle3"
    boundaries = (1,)
    most_tokens = 3
    usual_acceptance = None
    is_one_pass = False
    reach = 2

    def __init__(self):
        self.contexts = []

    def draft(self, context, counts):
        self.contexts.append((context, list(counts)))
        return (10 + torch.arange(max(counts, default=0))).expand(len(counts), -1)


def new_decoding():
    """Returns what a store of drafting steps reads of the store of decoding steps."""
    taps = Taps(boundaries=(1,), rows=torch.zeros(32, 8))
    return SimpleNamespace(
        memory=StepMemory(CPU, most_requests=8, vocab_size=9, taps=taps),
        device=CPU,
        model=SimpleNamespace(kernels=SimpleNamespace(ledger=Ledger())),
        config=KernelConfig(),
        page_size=4,
        idle_page=99,
        max_context=40,
    )


def new_speculator(jobs, measured=CHEAP, *, adapts=True, room=2, most=0):
    policy = DraftPolicy(most_rows=8, adapts=adapts, totals=Statistics(), measure=lambda: measured)
    policy.start()
    sizes = DraftSizes(most or Counter.most_tokens, 8, is_one_pass=False)
    held = {id(job.token_ids): job for job in jobs}
    return DraftingSpeculator(
        DraftStore(Counter(), new_decoding(), sizes),
        policy,
        lambda span: held.get(id(span.token_ids)),
        reserve=lambda job, count: room,
    )


def step(speculator, job, drawn=5, drafts=()):
    """Has the network see a decoding step of `job` that drew a token."""
    plan = Plan(spans=[job.span(len(job.token_ids), drafts)])
    job.num_computed += 1
    job.token_ids.append(drawn)
    speculator.follow(plan, [SpanResult(token_id=drawn)], torch.ones(plan.num_tokens, 8))
    return plan


def test_drafts_follow_the_step_that_was_seen():
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job])
    assert speculator.find_drafts([job]) == [()]
    step(speculator, job)
    assert speculator.find_drafts([job]) == [[10, 11, 12]]
    job.token_ids.append(9)
    assert speculator.find_drafts([job]) == [()], "they do not follow that token"


def test_network_reads_kept_rows_and_what_follows_them():
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job])
    plan = Plan(spans=[job.span(3, [7, 8, 9])])
    job.num_computed = 4
    job.token_ids += [7, 4]
    result = SpanResult(token_id=7, following=[SpanResult(token_id=4)])
    speculator.follow(plan, [result], torch.arange(4)[:, None])
    [(context, _)] = speculator.drafter.contexts
    assert context.followers.tolist() == [7, 4] and context.batch.positions.tolist() == [2, 3]
    assert context.features.tolist() == [[0], [1]] and context.next_ids.tolist() == [4]


def test_at_most_the_asked_number_is_drafted():
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job], most=2)
    step(speculator, job)
    assert speculator.find_drafts([job]) == [[10, 11]]


def test_nothing_is_drafted_without_pages_for_the_network():
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job], room=1)
    step(speculator, job)
    assert speculator.find_drafts([job]) == [()]


def test_drafts_end_where_the_grammar_does_not_allow_them():
    job = new_job("a", [1, 2, 3], Mask())
    speculator = new_speculator([job])
    step(speculator, job)
    assert speculator.find_drafts([job]) == [[10]]


@pytest.mark.parametrize(("stop", "drafts"), [(12, [10, 11]), (10, []), (99, [10, 11, 12])])
def test_drafts_end_before_a_token_that_ends_the_request(stop, drafts):
    """Rows after it were verified, of which none can stay in the text."""
    job = new_job("a", [1, 2, 3])
    job.request = replace(job.request, stops=frozenset({stop}))
    speculator = new_speculator([job])
    step(speculator, job)
    assert speculator.find_drafts([job]) == [drafts]


@pytest.mark.parametrize("adapts", [True, False])
def test_request_is_left_after_steps_for_which_drafts_did_not_pay(adapts):
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job], DEAR, adapts=adapts)
    speculator.policy.allowance.steps = 0.5  # too little for a probe
    for _ in range(MOST_IDLE):
        assert speculator.waits(plan_of(job))
        step(speculator, job)
    assert speculator.waits(plan_of(job)) != adapts
    seen = len(speculator.drafter.contexts)
    step(speculator, job)
    assert (len(speculator.drafter.contexts) == seen) == adapts


def leave(speculator, job):
    """Has the network leave the request, and follow it again from position 8 on."""
    step(speculator, job)
    speculator._texts["a"].leave(4)
    speculator._texts["a"].begin = 8


def test_request_is_followed_again_from_the_first_token_of_a_page():
    job = new_job("a", [1, 2, 3])  # position 2 is stored, and 3 to 7 are not
    speculator = new_speculator([job])
    leave(speculator, job)
    while job.num_computed < 8:
        assert not speculator.waits(plan_of(job))
        step(speculator, job)
        assert speculator.find_drafts([job]) == [()]
    assert speculator.waits(plan_of(job)), "its residuals must not be overwritten"
    step(speculator, job)
    first, again = (context for context, _ in speculator.drafter.contexts)
    assert first.batch.positions.tolist() == [2] and first.batch.full.page_table[0, 0] == 0
    assert again.batch.positions.tolist() == [0] and again.batch.kv_lens.tolist() == [1]
    assert again.batch.full.page_table[0, 0] == 2 and again.batch.full.slots.tolist() == [8]
    assert speculator.find_drafts([job]) == [[10, 11, 12]]


def test_request_that_was_left_is_tried_at_ever_longer_intervals(monkeypatch):
    monkeypatch.setattr(drafting, "AGAIN_AFTER", (8, 20))
    text = drafting.FollowedText([0] * 5, None)
    begins = []
    for _ in range(4):
        text.leave(4)
        begins.append(text.begin - len(text.token_ids))
        text.token_ids = [0] * (text.begin + 2)
    assert begins == [11, 18, 22, 22] and text.most_idle < MOST_IDLE
    text.token_ids = [0] * (text.begin + 20)
    text.leave(4)
    assert text.begin - len(text.token_ids) == 8, "it has stayed as long as it had been left"


def test_preempted_request_lacks_what_the_pages_lack_that_it_finds():
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job])
    leave(speculator, job)
    while job.num_computed < 6:
        step(speculator, job)
    job.preemptions += 1
    assert not speculator.waits(plan_of(job)), "the page before the last is lacking"
    assert speculator._texts["a"].gaps == [0, 1] and speculator._texts["a"].begin == 8
    job.preemptions, job.num_computed = 2, 0
    assert speculator.waits(plan_of(job)) and not speculator._texts["a"].gaps


@pytest.mark.parametrize("num_others", [0, 3])
def test_requests_without_the_network_count_as_rows_of_the_step(num_others):
    """A step of many requests was taken for one of those that are followed."""
    jobs = [new_job(str(number), [1, 2, 3]) for number in range(1 + num_others)]
    speculator = new_speculator(jobs, {1: 1.0, 2: 9.0, 8: 9.0})
    for other in jobs[1:]:
        step(speculator, other)
        speculator._texts[other.request.request_id].leave(4)
    plan = plan_of(*jobs)
    for own in jobs:
        own.num_computed += 1
        own.token_ids.append(5)
    speculator.follow(plan, [SpanResult(token_id=5)] * len(jobs), torch.ones(len(jobs), 8))
    assert speculator.drafter.contexts[-1][1] == [3 if num_others else 0]


def test_request_is_left_at_once_if_drafts_lost_more_than_allowed():
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job])
    speculator.policy.allowance.count(100.0, 1.0, 1.0)
    step(speculator, job)
    assert not speculator.waits(plan_of(job))


@pytest.mark.parametrize(("left", "drafted"), [(1, 0), (2, 1), (9, 3)])
def test_last_token_of_a_request_is_not_drafted(left, drafted):
    """A network drafted once more for the last token, which is drawn."""
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job], adapts=False)
    job.request = replace(job.request, params=SamplingParams(max_tokens=4 + left))
    step(speculator, job)
    [(_, counts)] = speculator.drafter.contexts
    assert counts == [drafted] and len(speculator.find_drafts([job])[0]) == drafted


def test_step_of_left_requests_teaches_what_plain_steps_cost():
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job], DEAR)
    speculator.policy.allowance.steps = 0.5
    for _ in range(MOST_IDLE):
        speculator.count(step(speculator, job), [SpanResult(token_id=5)], StepTime(ms=1.5))
    plain = speculator.policy.plain.predict(1)
    speculator.count(step(speculator, job), [SpanResult(token_id=5)], StepTime(ms=1.5))
    assert speculator.policy.verifying.predict(1) > 1.2 and speculator.policy.plain.predict(1) > plain


def test_request_that_has_ended_is_forgotten():
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job])
    step(speculator, job)
    speculator.drop("a")
    assert not speculator._texts
    assert not new_speculator([]).waits(plan_of(job)), "of a cancelled request"


def test_network_whose_drafts_are_wrong_is_suspected_once(caplog):
    job = new_job("a", [1, 2, 3])
    speculator = new_speculator([job], adapts=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(FEWEST_DRAFTS + 5):
            plan = step(speculator, job, drafts=(10, 11))
            speculator.count(plan, [SpanResult(token_id=5)], StepTime(ms=1.0))
    [record] = caplog.records
    assert "--speculate eagle3: only 0%" in record.getMessage()
