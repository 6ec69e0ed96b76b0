"""Runs of requests on a counting engine: requests in flight and incomplete outputs."""

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


class CountingEngine:
    """Gives every request the tokens 0, 1, 2 ..., one per step; the first step of a prompt gives none."""

    def __init__(self):
        self.given = {}
        self.seen = []  # names in flight at each step

    @property
    def has_work(self):
        return bool(self.given)

    def submit(self, request):
        self.given[request.request_id] = (request, -1)

    def step(self):
        self.seen.append("".join(self.given))
        outputs = []
        for name, (request, count) in list(self.given.items()):
            self.given[name] = (request, count + 1)
            is_last = count + 1 == request.params.max_tokens
            if count >= 0:
                outputs.append(output(name, [count], "length" if is_last else None))
            if is_last:
                del self.given[name]
        return outputs


def test_requests_that_run_together_are_in_flight_from_the_first_step():
    engine = CountingEngine()
    outputs = run_together(engine, [request("a"), request("b", 1)])
    assert engine.seen == ["ab", "ab", "a", "a"] and outputs.tokens == {"a": [0, 1, 2], "b": [0]}
    assert (outputs.most_at_once, outputs.silent_steps) == (2, 1)


def test_requests_arrive_before_their_step_or_when_the_engine_is_idle():
    engine = CountingEngine()
    run_together(engine, [request("a"), request("b"), request("c")], at=[2, 0, 90])
    assert engine.seen == ["b", "b", "ba", "ba", "a", "a", "c", "c", "c", "c"]


def test_requests_that_run_alone_follow_each_other():
    engine = CountingEngine()
    outputs = run_alone(engine, [request("a", 1), request("b", 2)])
    assert engine.seen == ["a", "a", "b", "b", "b"] and outputs.tokens == {"a": [0], "b": [0, 1]}
    assert (outputs.most_at_once, outputs.silent_steps) == (1, 2)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (output("a", [7], "stop"), "request a gave 1 of 3 tokens and ended with stop, not length"),
        (output("a", [7, 7, 7], "stop"), "request a gave 3 of 3 tokens and ended with stop"),
        (output("a", [], "error", error="logits hold NaN"), "0 of 3 .* with error, .*: logits hold NaN"),
        (output("a", [7]), "1 of 3 tokens and ended with None"),
        (output("b", [7] * 3, "length"), "request a gave 0 of 3"),
    ],
)
def test_incomplete_request_is_an_error_that_names_it(last, message):
    outputs = Outputs()
    outputs.take([last])
    with pytest.raises(UserError, match=message):
        outputs.check([request("a")])


def test_margin_is_the_distance_of_the_two_most_likely_tokens():
    outputs = Outputs()
    token = TokenLogprobs(token_id=1, logprob=-0.5, top=((1, -0.5), (2, -0.75)))
    outputs.take([output("a", logprobs=token)])
    outputs.take([output("a", logprobs=replace(token, top=()))])
    assert outputs.margins == {"a": [0.25]}


def test_drawn_requests_repeat_with_the_seed_and_differ_from_each_other():
    first, again = (draw_requests([8] * 19 + [3], SamplingParams(), 272, seed=0) for _ in range(2))
    prompts = [request.token_ids for request in first]
    assert prompts == [request.token_ids for request in again] and len(set(map(tuple, prompts))) == 20
    assert len(prompts[-1]) == 3 and all(0 <= token < 272 for prompt in prompts for token in prompt)
    assert prompts != [
        request.token_ids for request in draw_requests([8] * 19 + [3], SamplingParams(), 272, seed=1)
    ]
