"""Drafts of a given acceptance: the planted text, the share of right drafts, and the engine's own speculation."""

import pytest

from firesteel import UserError
from firesteel.measure.speculate import runs
from firesteel.measure.speculate.runs import SimulatedSweep, check_text, measure_case, measure_simulated
from firesteel.measure.speculate.simulated import SimulatedIndex, follow, plant_order, use_speculator
from firesteel.measure.tokens.runs import Outputs, draw_requests, run_together
from firesteel.model.weights import Weights
from firesteel.types import SamplingParams


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    monkeypatch.setattr(runs, "ROUNDS", 1)


@pytest.fixture(scope="module")
def opened(open_llm):
    llm = open_llm(speculate="ngram", num_speculative_tokens=3, adapt_speculation=False, page_size=16)
    plant_order(llm.model.weights)
    return llm


@pytest.fixture
def planted(opened):
    """A tiny model whose every token is followed by its number plus one; its engine drafts by copying."""
    copying = opened.engine.speculator
    yield opened
    use_speculator(opened.engine, copying)


def test_planted_text_counts_upwards(planted):
    use_speculator(planted.engine, None)
    requests = draw_requests([20, 3], SamplingParams(max_tokens=12), planted.spec.vocab_size, seed=1)
    outputs = run_together(planted.engine, requests)
    check_text(outputs, requests, planted.spec.vocab_size)
    outputs.tokens["1"][7] += 1
    with pytest.raises(UserError, match="request 1 did not count upwards"):
        check_text(outputs, requests, planted.spec.vocab_size)


def test_text_goes_on_at_the_end_of_the_vocabulary():
    assert follow(7, 4, 10) == [8, 9, 0, 1]


def test_lm_head_in_mxfp4_is_refused(open_llm):
    weights = open_llm(mxfp4_layers="lm_head").model.weights
    assert isinstance(weights, Weights)
    with pytest.raises(UserError, match="leave lm_head out of --mxfp4-layers"):
        plant_order(weights)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 1.0])
def test_each_position_is_right_with_the_given_chance_if_those_before_it_are(acceptance):
    index = SimulatedIndex([5], acceptance=acceptance, vocab_size=100, seed="s")
    drafts = [index.copy_after(index.find(), 4) for _ in range(4000)]
    assert all(len(draft) == 4 for draft in drafts)
    right = [sum(draft[: at + 1] == [6, 7, 8, 9][: at + 1] for draft in drafts) for at in range(4)]
    tried = len(drafts)
    for count in right:
        if tried > 100:
            assert count / tried == pytest.approx(acceptance, abs=0.06)
        tried = count


def test_engine_counts_the_acceptance_that_was_asked_for(planted):
    sweep = SimulatedSweep(requests=(2,), contexts=(12,), acceptances=(0.0, 0.7, 1.0), most_drafted=3, tokens=24)
    done = []
    plain, none, some, whole = measure_simulated(sweep, planted, progress=lambda *count: done.append(count))
    assert plain.acceptance is None and plain.drafts == 0 and plain.length == 1
    assert none.accepted == 0 and none.drafted > 0 and none.length == 1
    assert some.drafted > some.accepted > 0 and 1.5 < some.length < 3.2  # 1 + 0.7 + 0.49 + 0.343 = 2.53
    assert whole.accepted == whole.drafted and whole.length > 3
    assert all(len(speed.samples_tok_s) == 1 and speed.tok_s > 0 for speed in (plain, none, some, whole))
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_acceptance_of_one_ends_with_the_text_that_no_drafts_give(planted):
    """Only speed may differ: the same tokens, with drafts that are right, wrong, or not made."""
    requests = draw_requests([9, 30], SamplingParams(max_tokens=12), planted.spec.vocab_size, seed=2)
    sweep = SimulatedSweep(requests=(1,), contexts=(4,), acceptances=(0.5,), most_drafted=3, tokens=8)
    list(measure_simulated(sweep, planted, progress=lambda *_: None))
    copied = run_together(planted.engine, requests)
    use_speculator(planted.engine, None)
    plain = run_together(planted.engine, requests)
    assert isinstance(plain, Outputs) and copied.tokens == plain.tokens


def test_network_without_the_planted_text_is_refused(llm):
    requests = draw_requests([5], SamplingParams(max_tokens=9), llm.spec.vocab_size, seed=0)
    with pytest.raises(UserError, match="did not count upwards"):
        measure_case(llm.engine, requests, 5, None)


def test_engine_without_copied_drafts_is_refused(llm):
    sweep = SimulatedSweep(requests=(1,), contexts=(4,), acceptances=(), most_drafted=3, tokens=8)
    with pytest.raises(UserError, match="speculate=ngram"):
        list(measure_simulated(sweep, llm, progress=lambda *_: None))
