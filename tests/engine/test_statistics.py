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
    found = Statistics()
    found.count_step(plan(5, 1, 1))
    found.count_step(plan(9))
    assert (found.steps, found.step_tokens, found.step_requests) == (2, 16, 4)
    assert (found.largest_step_tokens, found.largest_step_requests) == (9, 3)


def test_finished_requests_add_up():
    found = Statistics()
    for factor in (1, 2):
        one = RequestStatistics(
            queue_s=0.5 * factor,
            first_token_s=1.0 * factor,
            token_s=0.25 * factor,
            prompt_tokens=10 * factor,
            cached_tokens=4 * factor,
            output_tokens=7 * factor,
            preemptions=factor,
        )
        found.count_finished(one)
    counts = (found.requests_finished, found.prompt_tokens, found.cached_tokens, found.output_tokens)
    assert counts == (2, 30, 12, 21)
    assert (found.queue_s, found.first_token_s, found.token_s) == (1.5, 3.0, 0.75)


def test_time_of_a_stage_is_added_even_where_it_fails():
    found = Statistics()
    with found.timed("build"):
        pass
    first = found.build_s
    with pytest.raises(ValueError, match="broken"), found.timed("build"):
        raise ValueError("broken")
    assert 0 < first < found.build_s and found.run_s == 0


def test_dictionary_holds_every_number():
    found = Statistics(pages=3).as_dict()
    assert found["pages"] == 3 and len(found) > 20 and all(type(value) in (int, float) for value in found.values())
