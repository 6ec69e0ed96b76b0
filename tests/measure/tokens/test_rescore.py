"""Texts read again: gaps are those of the generated tokens, and of all of them; those too large are a fault."""

import pytest

from firesteel import UserError
from firesteel.engine.sample.logprobs import TokenLogprobs
from firesteel.measure.tokens.rescore import Rescored, rescore
from firesteel.types import Request, SamplingParams, StepOutput


class Reader:
    """Gives its words in two steps; of the second, `lost` are missing."""

    def __init__(self, lost=0, error=None):
        self.text, self.steps, self.lost, self.error = None, 0, lost, error

    @property
    def has_work(self):
        return self.text is not None

    def submit(self, request):
        assert request.params.prompt_logprobs == 1
        self.text = list(request.token_ids)

    def step(self):
        words = [word(one) for one in self.text]
        half = len(words) // 2
        self.steps += 1
        if self.steps % 2:
            return [output(words[1:half])]
        self.text = None
        return [output(words[half + self.lost :], self.error)]


def word(token):
    """Knows one likeliest token, 7; every other is 2 nats behind."""
    return TokenLogprobs(token_id=token, logprob=-0.1 if token == 7 else -2.1, top=((7, -0.1),))


def output(words, error=None):
    return StepOutput(
        request_id="x", token_ids=[], finish_reason=None, num_cached=0, prompt_logprobs=words, error=error
    )  # fmt: skip


def request(name, *prompt):
    return Request(request_id=name, token_ids=prompt, params=SamplingParams(max_tokens=3))


def test_gaps_are_those_of_the_generated_tokens_only():
    made = {"a": [7, 7, 1], "b": [7, 2, 7]}
    found = rescore(Reader(), [request("a", 1, 2, 3), request("b", 7, 7)], made)
    assert [round(gap, 6) for gap in found.gaps] == [0, 0, 2, 0, 2, 0]


@pytest.mark.parametrize(
    ("reader", "message"),
    [(Reader(lost=1), "request b read again gave logprobs of 3 of 4 tokens"),
     (Reader(lost=3, error="NaN"), "request b read again gave logprobs of 1 of 4 tokens: NaN")],
)  # fmt: skip
def test_reading_that_leaves_tokens_out_is_an_error(reader, message):
    with pytest.raises(UserError) as raised:
        rescore(reader, [request("b", 7, 7)], {"b": [7, 2, 7]})
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("gaps", "is_rounded", "fault"),
    [
        ((0.0, 9e-4), False, None),
        ((0.0, 2e-3), False, "up to 0.002 nats behind the likeliest; float32 explains 0.001"),
        ((0.0, float("nan")), False, "up to nan nats behind"),
        ((0.0, 0.9), True, None),
        ((0.0, 1.0), True, "0.50 nats behind the likeliest on average; rounding explains 0.5"),
        ((0.0, float("nan")), True, "nan nats behind"),
    ],
)
def test_gaps_that_rounding_does_not_explain_are_a_fault(gaps, is_rounded, fault):
    found = Rescored(gaps=gaps[::-1]).find_fault(is_rounded=is_rounded)
    assert found is None if fault is None else fault in found


def test_shares_and_gaps_are_of_all_tokens():
    found = Rescored(gaps=(0.0, 0.0, 0.5, 1.5))
    assert found.as_dict() == {
        "tokens": 4, "likeliest_share": 0.5, "mean_gap_nats": 0.5, "largest_gap_nats": 1.5
    }  # fmt: skip
