"""Reading the tokens of a step: results per request, faults by name, logprobs if requested."""

import torch

from firesteel.engine.sample.logprobs import score
from firesteel.engine.sample.pending import PendingTokens
from firesteel.engine.sample.row import SampleRow
from firesteel.model.step_ints import StepResult
from firesteel.types import SamplingParams


def rows(*logprobs):
    return [
        SampleRow(params=SamplingParams(logprobs=num_top), position=9, name=f"request {number}")
        for number, num_top in enumerate(logprobs)
    ]


def test_padding_rows_of_a_step_are_not_read():
    last = StepResult.new(4, torch.device("cpu"))
    last.token_ids.copy_(torch.tensor([5, 6, 7, 8]))
    last.best.copy_(torch.tensor([5.0, 16.0, 27.0, 38.0]))
    drawn = PendingTokens.begin_plain(rows(None, None, None), last).read()
    assert [result.token_id for result in drawn] == [5, 6, 7] and not any(result.error for result in drawn)
    assert last.token_ids.tolist() == [5, 6, 7, 8]


def test_logit_that_is_not_finite_is_a_fault_of_its_row():
    last = StepResult.new(3, torch.device("cpu"))
    last.best.copy_(torch.tensor([1.0, float("nan"), float("inf")]))
    first, *broken = PendingTokens.begin_plain(rows(None, None, None), last).read()
    assert (first.token_id, first.error) == (0, None)
    for number, result in enumerate(broken, 1):
        assert result.token_id is None and result.error.startswith(f"request {number}: the model's logits hold NaN")


def test_error_says_that_no_token_is_allowed():
    best = torch.tensor([float("-inf")])
    (drawn,) = PendingTokens.begin(rows(None), torch.tensor([3]), best).read()
    assert drawn.token_id is None and "no token can be drawn" in drawn.error


def test_logprobs_go_to_the_rows_that_request_them():
    logits, token_ids = torch.randn(3, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([1, 2, 3])
    scored = score(logits[1:2], token_ids[1:2], 2)
    drawn = PendingTokens.begin(rows(None, 2, None), token_ids, logits.amax(1), scored).read()
    assert [result.logprobs is None for result in drawn] == [True, False, True]
    assert drawn[1].logprobs.token_id == 2 and len(drawn[1].logprobs.top) == 2


def test_request_that_allows_nothing_is_refused_and_invalid_logits_are_not():
    best = torch.tensor([float("-inf"), float("nan"), float("inf"), 1.0])
    drawn = PendingTokens.begin(rows(None, None, None, None), torch.arange(4), best).read()
    assert [result.is_refused for result in drawn] == [True, False, False, False]
