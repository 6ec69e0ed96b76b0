"""Log-probabilities against log_softmax."""

from dataclasses import replace

import pytest
import torch

from firesteel.engine.sample.logprobs import score

LOGITS = 5 * torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
TOKENS = torch.tensor([3, 0, 39, 17, 3, 8])


def test_logprobs_are_those_of_log_softmax():
    expected = LOGITS.double().log_softmax(-1)
    for i, logprobs in enumerate(score(LOGITS, TOKENS, 5).read([5] * 6)):
        assert logprobs.token_id == TOKENS[i]
        assert logprobs.logprob == pytest.approx(expected[i, TOKENS[i]].item(), abs=1e-5)
        best = expected[i].topk(5)
        assert [token for token, _ in logprobs.top] == best.indices.tolist()
        assert [value for _, value in logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_each_token_keeps_its_own_number_of_alternatives():
    num_top = [0, 1, 20, 3, 0, 2]
    assert [len(logprobs.top) for logprobs in score(LOGITS, TOKENS, 20).read(num_top)] == num_top


def test_zero_alternatives_leave_the_logprob_of_the_token():
    expected = [replace(logprobs, top=()) for logprobs in score(LOGITS, TOKENS, 5).read([5] * 6)]
    assert score(LOGITS, TOKENS, 0).read([0] * 6) == expected


def test_alternatives_are_at_most_the_vocabulary():
    assert len(score(LOGITS[:1, :4], TOKENS[:1], 20).read([20])[0].top) == 4


def test_ties_are_ordered_by_id():
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]])
    (logprobs,) = score(logits, torch.tensor([0]), 5).read([5])
    assert [token for token, _ in logprobs.top] == [1, 3, 0, 2, 4]


def test_impossible_token_has_minus_infinity():
    (logprobs,) = score(torch.tensor([[0.0, float("-inf")]]), torch.tensor([1]), 2).read([2])
    assert logprobs.logprob == float("-inf")
    assert logprobs.top == ((0, 0.0), (1, float("-inf")))


def test_long_prompts_are_scored_in_chunks(monkeypatch):
    whole = score(LOGITS, TOKENS, 3).read([3] * 6)
    monkeypatch.setattr("firesteel.engine.sample.row._MAX_LOGITS", 80)
    assert score(LOGITS, TOKENS, 3).read([3] * 6) == whole


def test_no_tokens_have_no_logprobs():
    assert score(LOGITS[:0], TOKENS[:0], 3).read([]) == []
