"""The plan of a step: its order, its limits and its outputs."""

from dataclasses import replace

import pytest

from firesteel.errors import RequestError
from firesteel.types import SpanResult
from tests.engine import scheduler_world
from tests.engine.scheduler_world import World


def test_decoding_goes_first_and_prompts_fill_the_step():
    world = World(budget=8)
    world.submit([1] * 5, 9)
    world.step()
    world.submit([2] * 20, 2)
    world.step()
    world.step()
    assert world.plans == [[("0", 0, 5)], [("0", 5, 6), ("1", 0, 7)], [("0", 6, 7), ("1", 7, 14)]]


def test_prompt_is_split_into_chunks_of_a_step():
    world = World(budget=7, num_pages=80)
    world.submit([1] * 20, 1)
    world.drain()
    assert world.plans == [[("0", 0, 7)], [("0", 7, 14)], [("0", 14, 20)]]


def test_prompts_beside_decoding_are_limited_and_prompts_alone_fill_the_step():
    asked = []

    def find_room(num_decoding):
        asked.append(num_decoding)
        return 3

    world = World(budget=16, num_pages=80, find_room=find_room)
    world.submit([5] * 20, 9)
    world.step()
    world.step()
    assert world.plans == [[("0", 0, 16)], [("0", 16, 20)]] and asked == []
    world.submit([1] * 5, 2)
    world.submit([2] * 4, 2)
    for _ in range(4):
        world.step()
    assert world.plans[2:] == [
        [("0", 20, 21), ("1", 0, 3)],
        [("0", 21, 22), ("1", 3, 5), ("2", 0, 1)],
        [("0", 22, 23), ("1", 5, 6), ("2", 1, 4)],
        [("0", 23, 24), ("2", 4, 5)],
    ]
    assert asked[:3] == [1, 1, 2]
    world.drain()
    world.check_end()


def test_running_requests_stay_within_the_limit():
    world = World(seqs=2)
    for _ in range(5):
        world.submit([1, 2], 3)
    world.step()
    assert [name for name, _, _ in world.plans[0]] == ["0", "1"]
    world.drain()
    world.check_end()


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        (60, 5, "60 prompt tokens and 5 to come exceed the context of 64: shorten the prompt or lower max_tokens"),
        (20, 18, r"20 prompt tokens and 18 to come need 13 pages of the cache, which has 12: .*--kv-cache-gib"),
        (0, 1, "the prompt is empty"),
    ],
)
def test_request_that_could_never_run_is_refused(prompt, new, message):
    world = World(num_pages=12)
    with pytest.raises(RequestError, match=message):
        world.submit([1] * prompt, new)
    assert not world.scheduler.jobs
    world.submit([1] * 20, 17)
    world.drain()


def test_name_in_use_is_refused_and_free_again_afterwards():
    world = World()
    world.submit([1], 1)
    request = world.requests["0"]
    with pytest.raises(RequestError, match="request 0: there is one of this name already"):
        world.scheduler.add(replace(request))
    world.drain()
    world.scheduler.add(replace(request))


def test_cancelling_an_unknown_request_returns_none():
    world = World()
    assert not world.scheduler.cancel("nobody")


def test_output_of_a_cancelled_request_does_not_reach_another_of_its_name():
    world = World()
    world.submit([1] * 3, 4)
    plan = world.scheduler.next()
    world.scheduler.cancel("0")
    world.scheduler.add(replace(world.requests["0"], token_ids=[2]))
    assert world.scheduler.commit(plan, [SpanResult(token_id=1)]) == []
    assert world.scheduler.jobs["0"].token_ids == [2]


def test_row_without_a_token_ends_its_request_with_the_error():
    world = World()
    world.submit([1] * 3, 4)
    world.submit([2] * 3, 4)
    plan = world.scheduler.next()
    outputs = world.scheduler.commit(plan, [SpanResult(error="NaN"), SpanResult(token_id=1)])
    assert [(output.finish_reason, output.error, output.token_ids) for output in outputs] == [
        ("error", "NaN", []),
        (None, None, [1]),
    ]
    assert list(world.scheduler.jobs) == ["1"]


def test_scoring_wants_the_logits_of_every_prompt_token_even_of_cached_ones():
    world = World(budget=7, num_pages=200)
    world.submit([1] * 20, 1)
    world.drain()
    world.submit([1] * 20, score=True)
    wanted = []
    while world.scheduler.jobs:
        plan = world.scheduler.next()
        wanted += [(span.start, span.end, span.num_logits, span.samples) for span in plan.spans]
        outputs = world.scheduler.commit(plan, [SpanResult()])
    assert wanted == [(0, 7, 7, False), (7, 14, 7, False), (14, 20, 6, False)]
    assert (outputs[0].finish_reason, outputs[0].token_ids) == ("length", [])


def test_prompt_logits_per_step_are_limited_while_others_go_on():
    world = World(num_pages=200, budget=20, prompt_logits=6)
    for _ in range(2):
        world.submit([1] * 8, score=True)
    world.submit([2] * 5, 1)
    world.drain()
    assert world.plans == [[("0", 0, 6), ("2", 0, 5)], [("0", 6, 8), ("1", 0, 4)], [("1", 4, 8)]]


def test_statistics_of_a_request_are_times_from_its_arrival():
    world = World(seqs=1)
    world.submit([1] * 3, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_world, "next_token", lambda token_ids: 0)
        second = world.submit([2] * 3, 5)
        world.drain()
    statistics = world.outputs[second].statistics
    assert (statistics.queue_s, statistics.first_token_s, statistics.token_s) == (5.0, 5.0, 1.0)
    assert (statistics.prompt_tokens, statistics.output_tokens, statistics.preemptions) == (3, 5, 0)
