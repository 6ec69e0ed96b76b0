"""Rescored texts: gaps of the generated tokens, and gaps that are too large."""

from dataclasses import replace

import pytest

from firesteel import UserError
from firesteel.config import resolve
from firesteel.engine.sample.logprobs import TokenLogprobs
from firesteel.measure.tokens.rescore import Rescored, is_rounded, rescore
from firesteel.types import Request, SamplingParams, StepOutput


class ScoringEngine:
    """Scores a prompt in two steps; `lost` tokens of the second are missing."""

    def __init__(self, lost=0, error=None):
        self.text, self.steps, self.lost, self.error = None, 0, lost, error

    @property
    def has_work(self):
        return self.text is not None

    def submit(self, request):
        assert request.params.prompt_logprobs == 1
        self.text = list(request.token_ids)

    def step(self):
        words = [word(token) for token in self.text]
        half = len(words) // 2
        self.steps += 1
        if self.steps % 2:
            return [output(words[1:half])]
        self.text = None
        return [output(words[half + self.lost :], self.error)]


def word(token):
    """Token 7 is always the most likely; every other is 2 nats behind."""
    return TokenLogprobs(token_id=token, logprob=-0.1 if token == 7 else -2.1, top=((7, -0.1),))


def output(words, error=None):
    return StepOutput(
        request_id="x", token_ids=[], finish_reason=None, num_cached=0, prompt_logprobs=words, error=error
    )


def request(name, *prompt):
    return Request(request_id=name, token_ids=prompt, params=SamplingParams(max_tokens=3))


def test_only_generated_tokens_have_gaps():
    tokens = {"a": [7, 7, 1], "b": [7, 2, 7]}
    rescored = rescore(ScoringEngine(), [request("a", 1, 2, 3), request("b", 7, 7)], tokens)
    assert [round(gap, 6) for gap in rescored.gaps] == [0, 0, 2, 0, 2, 0]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (ScoringEngine(lost=1), "request b: rescoring gave logprobs of 3 of 4 tokens"),
        (ScoringEngine(lost=3, error="NaN"), "request b: rescoring gave logprobs of 1 of 4 tokens: NaN"),
    ],
)
def test_unscored_tokens_are_an_error(engine, message):
    with pytest.raises(UserError) as raised:
        rescore(engine, [request("b", 7, 7)], {"b": [7, 2, 7]})
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("gaps", "is_rounded", "fault"),
    [
        ((0.0, 9e-4), False, None),
        ((0.0, 2e-3), False, "up to 0.002 nats behind the most likely; float32 explains 0.001"),
        ((0.0, float("nan")), False, "up to nan nats behind"),
        ((0.0, 0.9), True, None),
        ((0.0, 1.0), True, "0.50 nats behind the most likely on average; rounding explains 0.5"),
        ((0.0, float("nan")), True, "nan nats behind"),
    ],
)
def test_gaps_that_rounding_does_not_explain_are_a_fault(gaps, is_rounded, fault):
    actual = Rescored(gaps=gaps[::-1]).find_fault(is_rounded=is_rounded)
    assert actual is None if fault is None else fault in actual


def test_shares_and_gaps_cover_all_tokens():
    rescored = Rescored(gaps=(0.0, 0.0, 0.5, 1.5))
    assert rescored.as_dict() == {
        "tokens": 4,
        "likeliest_share": 0.5,
        "mean_gap_nats": 0.5,
        "largest_gap_nats": 1.5,
    }


def test_only_float32_throughout_is_not_rounded(llm):
    assert not is_rounded(llm.device, resolve({}).config)
    for settings in ({"kv_dtype": "fp8"}, {"kv_dtype": "bf16"}, {"activation": "mxfp8"}):
        assert is_rounded(llm.device, resolve(settings).config)
    assert is_rounded(replace(llm.device, capability=(9, 0)), resolve({}).config)
