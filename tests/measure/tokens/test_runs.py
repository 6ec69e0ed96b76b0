"""A run of requests, on an engine that counts: who is in flight when, and what is incomplete."""

from dataclasses import replace

import pytest

from firesteel import UserError
from firesteel.engine.sample.logprobs import TokenLogprobs
from firesteel.measure.tokens.runs import Outputs, draw_requests, run_alone, run_together
from firesteel.types import Request, SamplingParams, StepOutput


def request(name, max_tokens=3):
    return Request(request_id=name, token_ids=[1, 2], params=SamplingParams(max_tokens=max_tokens))


def output(name, token_ids=(7,), reason=None, **fields):
    return StepOutput(request_id=name, token_ids=list(token_ids), finish_reason=reason, num_cached=0, **fields)


class Counting:
    """Gives every request its tokens 0, 1, 2 ..., one a step; a prompt's first step is silent."""

    def __init__(self):
        self.given = {}
        self.seen = []  # names in flight at each step

    @property
    def has_work(self):
        return bool(self.given)

    def submit(self, one):
        self.given[one.request_id] = (one, -1)

    def step(self):
        self.seen.append("".join(self.given))
        outputs = []
        for name, (one, count) in list(self.given.items()):
            self.given[name] = (one, count + 1)
            is_last = count + 1 == one.params.max_tokens
            if count >= 0:
                outputs.append(output(name, [count], "length" if is_last else None))
            if is_last:
                del self.given[name]
        return outputs


def test_together_all_are_in_flight_from_the_first_step():
    engine = Counting()
    made = run_together(engine, [request("a"), request("b", 1)])
    assert engine.seen == ["ab", "ab", "a", "a"] and made.tokens == {"a": [0, 1, 2], "b": [0]}
    assert (made.most_at_once, made.silent_steps) == (2, 1)


def test_requests_arrive_before_the_step_named_or_when_nothing_is_left_to_do():
    engine = Counting()
    run_together(engine, [request("a"), request("b"), request("c")], at=[2, 0, 90])
    assert engine.seen == ["b", "b", "ba", "ba", "a", "a", "c", "c", "c", "c"]


def test_alone_one_follows_the_other():
    engine = Counting()
    made = run_alone(engine, [request("a", 1), request("b", 2)])
    assert engine.seen == ["a", "a", "b", "b", "b"] and made.tokens == {"a": [0], "b": [0, 1]}
    assert (made.most_at_once, made.silent_steps) == (1, 2)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (output("a", [7], "stop"), "request a gave 1 of 3 tokens and ended with stop, not length"),
        (output("a", [7, 7, 7], "stop"), "request a gave 3 of 3 tokens and ended with stop"),
        (output("a", [], "error", error="logits hold NaN"), "0 of 3 .* with error, .*: logits hold NaN"),
        (output("a", [7]), "1 of 3 tokens and ended with None"),
        (output("b", [7] * 3, "length"), "request a gave 0 of 3"),
    ],
)  # fmt: skip
def test_incomplete_request_is_an_error_that_names_it(last, message):
    made = Outputs()
    made.take([last])
    with pytest.raises(UserError, match=message):
        made.check([request("a")])


def test_margin_is_between_the_two_most_likely():
    made = Outputs()
    token = TokenLogprobs(token_id=1, logprob=-0.5, top=((1, -0.5), (2, -0.75)))
    made.take([output("a", logprobs=token)])
    made.take([output("a", logprobs=replace(token, top=()))])
    assert made.margins == {"a": [0.25]}


def test_drawn_requests_are_the_same_each_time_and_differ_from_each_other():
    one, two = (draw_requests([8] * 19 + [3], SamplingParams(), 272, seed=0) for _ in range(2))
    prompts = [request.token_ids for request in one]
    assert prompts == [request.token_ids for request in two] and len(set(map(tuple, prompts))) == 20
    assert len(prompts[-1]) == 3 and all(0 <= token < 272 for prompt in prompts for token in prompt)
    assert prompts != [
        request.token_ids for request in draw_requests([8] * 19 + [3], SamplingParams(), 272, seed=1)
    ]
