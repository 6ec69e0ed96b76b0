"""Drafted tokens change no token: every request gives what it gives without drafts."""

import pytest

from firesteel.types import Request, SamplingParams
from tests.engine.arrivals import serve, tokens
from tests.engine.drafted_requests import NEW, PROMPTS, always, make, make_requests
from tests.engine.scripted_drafts import ScriptedSpeculator

PARAMS = {
    "greedy": {},
    "sampled": {"temperature": 0.7, "seed": 5},
    "truncated": {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 6},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.3},
    "bad words": {"bad_words": ((7, 8), (9,)), "temperature": 0.5},
    "logprobs": {"logprobs": 3},
    "least": {"min_tokens": 12, "stop_token_ids": tuple(range(0, 256, 3))},
    "prompt logprobs": {"prompt_logprobs": 2},
}


def script(engine, texts, *, chance=0.7, most=5):
    """Gives `engine` drafts of `texts` with planted errors."""
    engine.speculator = ScriptedSpeculator(engine.speculator.policy, texts, most=most, chance=chance)
    engine.scheduler.draft_with(engine.speculator.find_drafts, engine.loop.store.most_requests)
    return engine


def read(outputs):
    """Returns what a reader sees of each request, apart from times."""
    return {
        name: [
            (
                token,
                output.finish_reason,
                output.prompt_logprobs is not None,
                None if output.logprobs is None else [token for token, _ in output.logprobs.top],
            )
            for output in own
            for token in output.token_ids
        ]
        for name, own in outputs.items()
    }


@pytest.fixture(scope="module")
def expected(llm):
    """Returns the tokens of the requests without drafts."""
    return tokens(serve(make(llm), make_requests({})))


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_drafts_change_no_output(llm, params):
    expected = serve(make(llm), make_requests(params))
    engine = script(make(llm, speculate=always()), tokens(expected))
    assert read(serve(engine, make_requests(params))) == read(expected)
    totals = engine.totals
    assert 0 < totals.accepted_tokens < totals.draft_tokens
    assert sum(totals.accepted_at) == totals.accepted_tokens
    assert engine.pool.num_held == 0


@pytest.mark.parametrize(
    "batch",
    [{"max_num_seqs": 1}, {"max_num_seqs": 2}, {"max_num_batched_tokens": 7}, {"page_size": 16}, {"pages": 44}],
    ids=str,
)
def test_drafts_change_no_token_of_other_plans(llm, expected, batch):
    engine = script(make(llm, speculate=always(), **batch), expected, chance=0.9)
    assert tokens(serve(engine, make_requests({}))) == expected
    assert engine.totals.accepted_tokens > 0
    assert (engine.statistics().preemptions > 0) == ("pages" in batch)


@pytest.mark.parametrize("params", [{"prompt_logprobs": 1}, {}], ids=str)
def test_last_token_of_a_prompt_in_pieces_gets_no_drafts_while_it_is_scored(llm, params):
    """A last piece of one token was drafted after like a drawn one: prompt tokens were scored twice."""
    request = Request(
        request_id="0",
        token_ids=[3, 1, 4] * 3,
        params=SamplingParams(max_tokens=6, logit_bias={1: 90.0}, **params),
    )
    pieces = {"max_num_batched_tokens": 8}
    engine = make(llm, speculate=always(), **pieces)
    plain, drafted = (serve(made, [request])["0"] for made in (make(llm, **pieces), engine))
    scored = [
        [row.token_id for output in outputs for row in output.prompt_logprobs or ()] for outputs in (plain, drafted)
    ]
    assert scored[0] == scored[1] == (request.token_ids[1:] if params else [])
    assert [output.token_ids for output in plain] == [output.token_ids for output in drafted]
    assert engine.totals.drafts > 0


def test_requests_with_and_without_drafts_share_steps(llm, expected):
    engine = script(make(llm, speculate=always()), {name: expected[name] for name in "02"}, chance=1.0)
    assert tokens(serve(engine, make_requests({}))) == expected
    assert engine.totals.accepted_tokens == engine.totals.draft_tokens > 0
    assert engine.totals.drafts < engine.totals.step_requests


def test_copied_drafts_change_no_token(llm):
    params = {"logit_bias": {5: 100.0}}
    engine = make(llm, speculate=always(), max_num_seqs=32)
    assert tokens(serve(engine, make_requests(params))) == tokens(serve(make(llm), make_requests(params)))
    totals = engine.totals
    assert totals.accepted_tokens > totals.drafts, "more than one draft is accepted at a time"
    assert totals.steps < NEW / 2


def test_statistics_that_were_read_do_not_grow(llm, expected):
    engine = script(make(llm, speculate=always()), expected, chance=1.0)
    serve(engine, make_requests({})[:1])
    before = engine.statistics()
    counts = list(before.accepted_at)
    serve(engine, make_requests({})[:1])
    assert before.accepted_at == counts != engine.statistics().accepted_at


def test_right_drafts_take_fewer_steps(llm, expected):
    engine = script(make(llm, speculate=always(), max_num_seqs=20), expected, chance=1.0, most=4)
    serve(engine, make_requests({}))
    assert engine.totals.steps == 1 + -(-(NEW - 1) // 5)


def test_pages_of_rejected_drafts_are_given_back(llm, expected):
    engine = script(make(llm, speculate=always()), expected, chance=0.5)
    for request in make_requests({}):
        engine.submit(request)
    while engine.has_work:
        engine.step()
        for job in engine.scheduler.running:
            assert job.table.num_pages <= -(-len(job.token_ids) // 4)


def test_cached_prefix_after_drafts_equals_cold(llm, expected):
    engine = script(make(llm, speculate=always()), expected, chance=0.6)
    serve(engine, make_requests({})[:1])
    prompt = [*PROMPTS[0], *expected["0"], 1, 2]
    again = Request(request_id="again", token_ids=prompt, params=SamplingParams(max_tokens=8))
    outputs = serve(engine, [again])["again"]
    assert outputs[-1].num_cached >= len(prompt) - 4
    cold = serve(make(llm), [again])["again"]
    assert [output.token_ids for output in outputs] == [output.token_ids for output in cold]
