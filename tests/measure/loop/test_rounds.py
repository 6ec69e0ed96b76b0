"""Rounds through the engine: concurrency, stages and rescored texts."""

import pytest

from firesteel.config import BatchConfig, CacheConfig
from firesteel.engine.engine import Engine
from firesteel.measure.loop.rounds import measure_concurrency, run_round
from firesteel.measure.tokens.runs import draw_requests
from firesteel.types import SamplingParams


def draw(count, max_tokens):
    return draw_requests([7] * count, SamplingParams(max_tokens=max_tokens), 272, seed=0)


@pytest.fixture
def engine(llm):
    """An engine on the shared model."""
    return Engine(
        llm.model, llm.device, BatchConfig(page_size=4), CacheConfig(kv_cache_gib=0.01), max_context=llm.max_context
    )


def test_concurrency_limits_the_requests_in_flight(engine):
    """One at a time, each step serves one request; the step of a prompt is prefill, all others decode."""
    requests = draw(3, 4)
    figures, outputs = run_round(engine, requests, 1)
    assert figures.steps == 12 and engine.totals.largest_step_requests == outputs.most_at_once == 1
    figures, outputs = run_round(engine, requests, 2)
    assert engine.totals.largest_step_requests == outputs.most_at_once == 2 and figures.steps == 8
    assert sum(figures.stages_s.values()) > 0 and not engine.has_work
    assert figures.first_token_s < 60, "from submission, not from when the requests were drawn"


def test_generated_tokens_are_the_most_likely_when_rescored(engine):
    figures = measure_concurrency(engine, draw(5, 6), 4, rounds=1, num_checked=3)
    assert figures.reread.gaps == (0.0,) * 18
    assert measure_concurrency(engine, draw(2, 3), 1, rounds=1, num_checked=0).reread is None
