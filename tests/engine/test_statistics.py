"""Sums over steps and requests."""

import pytest

from firesteel.engine.statistics import Statistics
from firesteel.types import Plan, Request, RequestStatistics, SamplingParams, Span


def plan(*lens):
    request = Request(request_id="a", token_ids=[1], params=SamplingParams())
    return Plan(
        spans=[
            Span(request=request, token_ids=[], start=3, end=3 + n, full_pages=[], window_pages=[], num_logits=0)
            for n in lens
        ]
    )


def test_steps_are_counted_with_their_tokens_and_requests():
    statistics = Statistics()
    statistics.count_step(plan(5, 1, 1))
    statistics.count_step(plan(9))
    assert (statistics.steps, statistics.step_tokens, statistics.step_requests) == (2, 16, 4)
    assert (statistics.largest_step_tokens, statistics.largest_step_requests) == (9, 3)


def test_finished_requests_add_up():
    statistics = Statistics()
    for factor in (1, 2):
        request = RequestStatistics(
            queue_s=0.5 * factor,
            first_token_s=1.0 * factor,
            token_s=0.25 * factor,
            prompt_tokens=10 * factor,
            cached_tokens=4 * factor,
            output_tokens=7 * factor,
            preemptions=factor,
        )
        statistics.count_finished(request)
    counts = (
        statistics.requests_finished,
        statistics.prompt_tokens,
        statistics.cached_tokens,
        statistics.output_tokens,
    )
    assert counts == (2, 30, 12, 21)
    assert (statistics.queue_s, statistics.first_token_s, statistics.token_s) == (1.5, 3.0, 0.75)


def test_time_of_a_stage_is_added_even_if_it_fails():
    statistics = Statistics()
    with statistics.timed("build"):
        pass
    first = statistics.build_s
    with pytest.raises(ValueError, match="broken"), statistics.timed("build"):
        raise ValueError("broken")
    assert 0 < first < statistics.build_s and statistics.run_s == 0


def test_dictionary_holds_every_number():
    statistics = Statistics(pages=3).as_dict()
    assert (
        statistics["pages"] == 3
        and len(statistics) > 20
        and all(type(value) in (int, float) for name, value in statistics.items() if name != "accepted_at")
        and statistics["accepted_at"] == []
    )
