"""Mixed workloads against an engine of known speed: what is sent, when, and what the meter reads."""

import pytest

from firesteel.errors import UserError
from firesteel.measure.loop import workload as module
from firesteel.measure.loop.workload import Workload, summarise
from firesteel.types import StepOutput


class Clock:
    """Time passes only where the engine steps or the workload sleeps."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 1e-6)


class Engine:
    """Computes a prompt in the step that admits it and one token per request and step, 0.01 s each."""

    def __init__(self, clock, finish_reason="length"):
        self.clock, self.finish_reason = clock, finish_reason
        self.left, self.prompts, self.most_in_flight = {}, [], 0

    @property
    def has_work(self):
        return bool(self.left)

    def submit(self, request):
        self.left[request.request_id] = request.params.max_tokens
        self.prompts.append(list(request.token_ids))
        self.most_in_flight = max(self.most_in_flight, len(self.left))

    def step(self):
        self.clock.now += 0.01
        outputs = []
        for name in list(self.left):
            self.left[name] -= 1
            is_last = not self.left[name]
            reason = self.finish_reason if is_last else None
            outputs.append(StepOutput(request_id=name, token_ids=[7], finish_reason=reason, num_cached=0))
            if is_last:
                del self.left[name]
        return outputs


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module.WorkloadMeter.__init__, "__defaults__", (clock,))
    monkeypatch.setattr(module.time, "sleep", clock.sleep)
    return clock


def test_closed_loop_keeps_the_given_number_in_flight(clock):
    engine = Engine(clock)
    figures = Workload(vocab_size=50).run_closed(engine, in_flight=3, num_requests=9, seed=1)
    assert engine.most_in_flight == 3 and len(engine.prompts) == figures.num_requests == 9
    assert figures.prompt_tokens == sum(map(len, engine.prompts))
    assert all(0 <= token < 50 for prompt in engine.prompts for token in prompt)
    assert all(value == pytest.approx(10) for value in (*figures.first_token_ms, *figures.gaps_ms))
    assert figures.output_tok_s == pytest.approx(figures.output_tokens / figures.seconds)


def test_the_same_seed_draws_the_same_requests(clock):
    engines = [Engine(clock), Engine(clock), Engine(clock)]
    for engine, seed in zip(engines, (1, 1, 2), strict=True):
        Workload(vocab_size=50).run_closed(engine, in_flight=2, num_requests=4, seed=seed)
    assert engines[0].prompts == engines[1].prompts != engines[2].prompts


def test_open_arrivals_count_from_when_they_were_due(clock):
    """A request that arrives while a step runs has waited for it: its first token takes longer than a step."""
    engine = Engine(clock)
    figures = Workload(vocab_size=50).run_open(engine, rate=20, seconds=2, seed=3)
    assert 20 < figures.num_requests < 70 and figures.parameters == {"rate": 20}
    assert all(10 <= first <= 20.1 for first in figures.first_token_ms) and max(figures.first_token_ms) > 10.5


def test_no_arrival_is_an_error_that_names_the_cure(clock):
    with pytest.raises(UserError, match=r"no request arrives within 0.001 s at 1 per second: raise one of them"):
        Workload(vocab_size=50).run_open(Engine(clock), rate=1, seconds=0.001, seed=3)


def test_each_turn_sends_all_earlier_tokens_again(clock):
    engine = Engine(clock)
    figures = Workload(vocab_size=50).run_turns(engine, context=30, new=5, num_turns=3, seed=4)
    first, *turns = engine.prompts
    assert len(first) == 30 and figures.num_requests == len(turns) == 3
    for before, after in zip(engine.prompts, turns, strict=False):
        assert after[: len(before)] == before
        assert len(after) == len(before) + module.TURN_OUTPUT + 5
        assert after[len(before) : len(before) + module.TURN_OUTPUT] == [7] * module.TURN_OUTPUT
    assert figures.prompt_tokens == sum(map(len, turns))


def test_lengths_are_scaled_but_never_empty(clock):
    engine = Engine(clock)
    figures = Workload(vocab_size=50, scale=0.001).run_closed(engine, in_flight=1, num_requests=4, seed=1)
    assert {len(prompt) for prompt in engine.prompts} <= {4, 5, 6}
    assert figures.output_tokens == 8


def test_a_request_that_ends_early_is_an_error(clock):
    with pytest.raises(UserError, match="ended with 'stop' before its full length"):
        Workload(vocab_size=50).run_closed(Engine(clock, "stop"), in_flight=1, num_requests=1, seed=1)


def test_samples_are_summarised_by_median_p99_and_maximum():
    assert summarise([]) is None
    assert summarise([float(number) for number in range(1, 201)]) == {"p50": 100.5, "p99": 199.0, "max": 200.0}
