"""Mixed workloads against an engine of known speed: what is sent, when, and what the meter reads."""

from dataclasses import replace

import pytest

from firesteel.errors import UserError
from firesteel.measure.loop import workload as module
from firesteel.measure.loop.mixed_requests import TURN_OUTPUT, MixedRequests, WorkloadRequest, digest_requests
from firesteel.measure.loop.workload import Workload, WorkloadMeter, WorkloadSweep, summarise
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
        self.left, self.prompts, self.sent, self.most_in_flight = {}, [], [], 0

    @property
    def has_work(self):
        return bool(self.left)

    def submit(self, request):
        self.left[request.request_id] = request.params.max_tokens
        self.prompts.append(list(request.token_ids))
        self.sent.append((request.token_ids, request.params.max_tokens))
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


def small_workload(scale=1.0):
    return Workload(MixedRequests(vocab_size=50, scale=scale))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module.WorkloadMeter.__init__, "__defaults__", (clock,))
    monkeypatch.setattr(module.time, "sleep", clock.sleep)
    return clock


def test_closed_loop_keeps_the_given_number_in_flight(clock):
    engine = Engine(clock)
    figures = small_workload().run_closed(engine, in_flight=3, num_requests=9, seed=1)
    assert engine.most_in_flight == 3 and len(engine.prompts) == figures.num_requests == 9
    assert figures.prompt_tokens == sum(map(len, engine.prompts))
    assert all(0 <= token < 50 for prompt in engine.prompts for token in prompt)
    assert all(value == pytest.approx(10) for value in (*figures.first_token_ms, *figures.gaps_ms))
    assert figures.output_tok_s == pytest.approx(figures.output_tokens / figures.seconds)


def test_the_same_seed_draws_the_same_requests(clock):
    engines = [Engine(clock), Engine(clock), Engine(clock)]
    for engine, seed in zip(engines, (1, 1, 2), strict=True):
        small_workload().run_closed(engine, in_flight=2, num_requests=4, seed=seed)
    assert engines[0].prompts == engines[1].prompts != engines[2].prompts


def test_open_arrivals_count_from_when_they_were_due(clock):
    """A request that arrives while a step runs has waited for it: its first token takes longer than a step."""
    engine = Engine(clock)
    figures = small_workload().run_open(engine, rate=20, seconds=2, seed=3)
    assert 20 < figures.num_requests < 70 and figures.parameters == {"rate": 20}
    assert all(10 <= first <= 20.1 for first in figures.first_token_ms) and max(figures.first_token_ms) > 10.5


def test_no_arrival_is_an_error_that_names_the_cure(clock):
    with pytest.raises(UserError, match=r"no request arrives within 0.001 s at 1 per second: raise one of them"):
        small_workload().run_open(Engine(clock), rate=1, seconds=0.001, seed=3)


def test_each_turn_sends_all_earlier_tokens_again(clock):
    engine = Engine(clock)
    figures = small_workload().run_turns(engine, context=30, new=5, num_turns=3, seed=4)
    first, *turns = engine.prompts
    assert len(first) == 30 and figures.num_requests == len(turns) == 3
    for before, after in zip(engine.prompts, turns, strict=False):
        assert after[: len(before)] == before
        assert len(after) == len(before) + TURN_OUTPUT + 5
        assert after[len(before) : len(before) + TURN_OUTPUT] == [7] * TURN_OUTPUT
    assert figures.prompt_tokens == sum(map(len, turns))


def test_lengths_are_scaled_but_never_empty(clock):
    engine = Engine(clock)
    figures = small_workload(scale=0.001).run_closed(engine, in_flight=1, num_requests=4, seed=1)
    assert {len(prompt) for prompt in engine.prompts} <= {4, 5, 6}
    assert figures.output_tokens == 8


def test_a_request_that_ends_early_is_an_error(clock):
    with pytest.raises(UserError, match="ended with 'stop' before its full length"):
        small_workload().run_closed(Engine(clock, "stop"), in_flight=1, num_requests=1, seed=1)


def test_samples_are_summarised_by_samples_among_them():
    assert summarise([]) is None
    assert summarise([float(number) for number in range(1, 201)]) == {
        "p50": 101.0,
        "p90": 181.0,
        "p99": 199.0,
        "max": 200.0,
    }


def test_time_per_token_is_that_after_the_first_output(clock):
    class TwoAtATime(Engine):
        def step(self):
            return [replace(output, token_ids=[7, 7]) for output in super().step()]

    meter = WorkloadMeter(TwoAtATime(clock))
    job = WorkloadRequest(name="a", token_ids=[1], num_output=3)
    meter.send(job)
    while meter.num_in_flight:
        meter.step()
    figures = meter.figures("closed", {}, [job], 1.0)
    assert figures.token_ms == (pytest.approx(20 / 5),)  # 6 tokens; 2 more outputs after the first


# Requests, prompt tokens, output tokens and digest of each run of the default workload. The totals of measured
# closed loops and of 2 requests per second are also those of vLLM's records (records/peers, `-workload-`).
WARM_UP = [(2, 1430, 160, "c25bdf8e152b274e"), (8, 8567, 933, "3b243d1ad4a34ec5")]
CHATS = [
    (3, 3204, 72, "37db3578ea5330aa"),
    (7, 8092, 168, "92a57e398010990c"),
    (3, 3744, 72, "9845cb3c22b93e61"),
    (7, 11872, 168, "b92e4da4a5565eee"),
    (3, 24708, 72, "a2c900ea8c4fb076"),
    (7, 58268, 168, "83b54da8fd5202d1"),
    (3, 25248, 72, "c277618ab406fc79"),
    (7, 62048, 168, "f04964e86f7e0b28"),
]
CLOSED_LOOPS = [
    (4, 2924, 596, "356dcfbd30b4b23b"),
    (8, 3874, 979, "e7a42c3acb9eff58"),
    (8, 4400, 871, "bf00615347a8e7a6"),
    (24, 20001, 3083, "1df3107386da02b8"),
    (32, 31196, 4011, "e9161d2e8bd90447"),
    (96, 93483, 13102, "b7ee45eb9d70555c"),
    (64, 48178, 8925, "9849e22db07d7191"),
    (192, 174608, 28228, "f2cda5c419ce1efe"),
]
ARRIVALS = [
    (12, 15195, 1379, "3b34ea164cbc6579"),
    (18, 11821, 2258, "2140f26dd022b057"),
    (25, 16034, 3452, "18c74f396145dbde"),
    (68, 64996, 9712, "798b9a95cb94106a"),
]


def split_runs(sent, counts):
    """Splits all that was sent into runs of as many requests, each with its totals and digest."""
    runs, begin = [], 0
    for count in counts:
        run = [
            WorkloadRequest(name="", token_ids=ids, num_output=output)
            for ids, output in sent[begin : begin + count]
        ]
        totals = (sum(len(job.token_ids) for job in run), sum(job.num_output for job in run))
        runs.append((len(run), *totals, digest_requests(run)))
        begin += count
    assert begin == len(sent)
    return runs


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"contexts": (1024, 8192), "new": (20, 200)}, CHATS),
        ({"in_flight": (1, 8, 32, 64)}, CLOSED_LOOPS),
        ({"rates": (2, 6)}, ARRIVALS),
    ],
    ids=["turns", "closed", "open"],
)
def test_default_workload_sends_the_published_requests(clock, chosen, expected):
    """Figures are compared across engines and revisions: every token of every request must stay what it is."""
    sweep = WorkloadSweep(**{"contexts": (), "new": (), "in_flight": (), "rates": (), "open_s": 12.0, **chosen})
    engine, workload = Engine(clock), Workload(MixedRequests(vocab_size=201_088))
    measured = list(sweep.run(engine, workload))
    expected = [*WARM_UP, *expected]
    assert split_runs(engine.sent, [count for count, *_ in expected]) == expected
    assert len(measured) == len(sweep)
    if "contexts" not in chosen:
        assert [figures.request_digest for figures in measured] == [digest for *_, digest in expected[3::2]]


def test_first_requests_of_a_closed_loop_are_these():
    """Lengths are drawn before all token ids, so a change of that order gives other ids."""
    drawn = MixedRequests(vocab_size=201_088).draw_closed(8, 24, seed=108)
    lengths = [(len(job.token_ids), job.num_output) for job in drawn[:3]]
    assert lengths == [(1574, 91), (217, 82), (198, 277)]
    assert drawn[0].token_ids[:3] == [191332, 29402, 41500]


def test_first_arrivals_come_at_these_times():
    drawn = MixedRequests(vocab_size=201_088).draw_open(2, 12.0, seed=302)
    assert [round(job.arrival_s, 4) for job in drawn[:3]] == [1.6791, 1.7019, 2.0379]
    assert drawn[-1].arrival_s == pytest.approx(11.948963)


def test_no_token_beyond_the_common_vocabulary_is_drawn():
    drawn = MixedRequests(vocab_size=10**9).draw_closed(1, 8, seed=101)
    assert drawn == MixedRequests(vocab_size=201_088).draw_closed(1, 8, seed=101)


def test_longest_request_of_a_sweep_counts_the_warm_up():
    sweep = WorkloadSweep(contexts=(1024, 8192), new=(20, 200), in_flight=(), rates=(), open_s=1)
    assert sweep.most_tokens() == 8192 + 7 * 224
    assert WorkloadSweep(contexts=(10,), new=(1,), in_flight=(), rates=(), open_s=1).most_tokens() == 6400
