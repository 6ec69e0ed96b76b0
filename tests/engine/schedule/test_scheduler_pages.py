"""Requests that share pages and are preempted when pages run out."""

import pytest

from firesteel.engine.cache.page_tables import FULL
from firesteel.types import SpanResult
from tests.engine import scheduler_world
from tests.engine.scheduler_world import World


def test_youngest_is_preempted_when_pages_run_out_and_keeps_its_tokens():
    world = World(num_pages=8, kinds=(FULL,), seqs=2, prefix_caching=False)
    first, second = world.submit([4] * 15, 14), world.submit([2] * 11, 14)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_world, "next_token", lambda token_ids: len(token_ids) % 3)  # never the stop token
        world.drain()
        world.check_end()
    assert world.outputs[first].statistics.preemptions == 0 and world.outputs[second].statistics.preemptions >= 1
    assert world.scheduler.num_preemptions == world.outputs[second].statistics.preemptions
    again = next(plan for plan in world.plans[3:] if (second, 0, 11) != plan[-1] and plan[-1][:2] == (second, 0))
    assert again[-1][2] > 11, "prompt and generated tokens are computed together"


def test_request_already_in_the_plan_can_be_preempted_by_an_older_one():
    """A prompt whose logits are returned slowly is still being computed while younger requests decode."""
    world = World(num_pages=7, kinds=(FULL,), seqs=2, prompt_logits=1, prefix_caching=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_world, "next_token", lambda token_ids: 0)
        first, second = world.submit([4] * 20, score=True), world.submit([2] * 4, 20)
        world.drain()
        world.check_end()
    assert world.outputs[second].statistics.preemptions == 1
    assert [(first, 12, 13)] in world.plans


def test_preempted_request_finds_its_surviving_pages():
    world = World(num_pages=12, kinds=(FULL,), seqs=2)
    world.submit([4] * 15, 14)
    second = world.submit([2] * 11, 14)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_world, "next_token", lambda token_ids: len(token_ids) % 3)
        world.drain()
        world.check_end()
    assert world.outputs[second].statistics.preemptions >= 1
    starts = [span[1] for plan in world.plans for span in plan if span[0] == second]
    assert starts.count(0) == 1


class _NoDraft:
    def drop(self, job):
        pass


def test_preempted_score_returns_every_row_once():
    world = World(num_pages=200, budget=7, prefix_caching=True)
    name = world.submit([1] * 20, score=True)
    rows = []
    for number in range(20):
        if number == 2:
            world.scheduler._preempt(world.scheduler.jobs[name], _NoDraft())
        plan = world.scheduler.next()
        for span in plan.spans:
            rows += range(span.end - span.num_logits, span.end)
        world.scheduler.commit(plan, [SpanResult() for span in plan.spans if span.num_logits])
        if not world.scheduler.jobs:
            break
    assert rows == list(range(20))


def test_waiting_request_is_not_overtaken_by_one_that_would_fit():
    world = World(num_pages=10, kinds=(FULL,), seqs=4)
    world.submit([1] * 20, 2)
    world.submit([2] * 24, 2)
    world.submit([4], 2)
    world.step()
    assert [name for name, _, _ in world.plans[0]] == ["0"]
    world.drain()
    assert list(world.reasons) == ["0", "1", "2"]


def test_request_is_admitted_only_if_its_prompt_fits_beside_the_others():
    world = World(num_pages=7, kinds=(FULL,), budget=64)
    world.submit([1] * 14, 2)
    world.submit([2] * 12, 2)
    world.step()
    assert len(world.plans[0]) == 2
    world = World(num_pages=6, kinds=(FULL,), budget=64)
    world.submit([1] * 14, 2)
    world.submit([2] * 12, 2)
    world.step()
    assert len(world.plans[0]) == 1


def test_second_request_with_the_same_prefix_computes_only_the_rest():
    world = World(num_pages=200, budget=64)
    world.submit(list(range(20)), 1)
    world.drain()
    second = world.submit([*range(16), 99, 98], 1)
    world.drain()
    assert world.plans[-1] == [(second, 16, 18)]
    assert world.outputs[second].num_cached == world.outputs[second].statistics.cached_tokens == 16
