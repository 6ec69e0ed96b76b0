"""Texts read again: gaps are those of the generated tokens, and of all of them."""

from firesteel.engine.logprobs import TokenLogprobs
from firesteel.measure.rereading import Reread, read_again
from firesteel.types import Request, SamplingParams, StepOutput


class Reader:
    """Knows one likeliest token, 7; every other is 2 nats behind. Gives its words in two steps."""

    def __init__(self):
        self.text, self.steps = None, 0

    @property
    def has_work(self):
        return self.text is not None

    def submit(self, request):
        assert request.params.prompt_logprobs == 1
        self.text = list(request.token_ids)

    def step(self):
        words = [
            TokenLogprobs(token_id=one, logprob=-0.1 if one == 7 else -2.1, top=((7, -0.1),)) for one in self.text
        ]
        half = len(words) // 2
        self.steps += 1
        if self.steps % 2:
            return [output(words[1:half])]
        self.text = None
        return [output(words[half:])]


def word(token):
    return TokenLogprobs(token_id=token, logprob=-0.1 if token == 7 else -2.1, top=((7, -0.1),))


def output(words):
    return StepOutput(request_id="x", token_ids=[], finish_reason=None, num_cached=0, prompt_logprobs=words)


def request(name, *prompt):
    return Request(request_id=name, token_ids=prompt, params=SamplingParams(max_tokens=3))


def test_gaps_are_those_of_the_generated_tokens_only():
    made = {"a": [7, 7, 1], "b": [7, 2, 7]}
    found = read_again(Reader(), [request("a", 1, 2, 3), request("b", 7, 7)], made)
    assert [round(gap, 6) for gap in found.gaps] == [0, 0, 2, 0, 2, 0]


def test_shares_and_gaps_are_of_all_tokens():
    found = Reread(gaps=(0.0, 0.0, 0.5, 1.5))
    assert found.as_dict() == {
        "tokens": 4, "likeliest_share": 0.5, "mean_gap_nats": 0.5, "largest_gap_nats": 1.5
    }  # fmt: skip
