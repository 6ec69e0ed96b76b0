"""What the settings make of an engine."""

import pytest

from firesteel.config import SpeculateConfig
from firesteel.engine.speculate.copying import MOST_COPIED
from firesteel.errors import UserError
from tests.engine.drafted_requests import make


def test_nothing_is_drafted_by_default(llm):
    assert make(llm).speculator is None


@pytest.mark.parametrize("kind", ["ngram", "auto"])
def test_text_is_copied_without_a_draft_model(llm, kind):
    speculator = make(llm, speculate=SpeculateConfig(speculate=kind)).speculator
    assert speculator.most == MOST_COPIED and speculator.policy.adapts and speculator.boundaries == ()


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_draft_network_needs_a_model(llm, kind):
    with pytest.raises(UserError, match=f"--speculate {kind} needs a draft model: give --draft-model"):
        make(llm, speculate=SpeculateConfig(speculate=kind))


def test_settings_limit_the_drafts(llm):
    asked = SpeculateConfig(speculate="ngram", num_speculative_tokens=2, adapt_speculation=False)
    speculator = make(llm, speculate=asked).speculator
    assert speculator.most == 2 and not speculator.policy.adapts


def test_one_request_can_be_verified_with_seven_drafts(llm):
    engine = make(llm, speculate=SpeculateConfig(speculate="ngram"), max_num_seqs=1)
    assert engine.loop.store.most_requests == engine.speculator.policy.most_rows == 8
    assert make(llm, max_num_seqs=1).loop.store.most_requests == 1


def test_number_of_tokens_that_cannot_be_drafted_is_named(llm, caplog):
    for most, requests in ((7, 1), (15, 16), (15, 1)):
        asked = SpeculateConfig(speculate="ngram", num_speculative_tokens=most)
        make(llm, speculate=asked, max_num_seqs=requests)
    [warning] = caplog.messages
    assert warning == "--num-speculative-tokens 15: steps of this --max-num-seqs verify at most 7"
