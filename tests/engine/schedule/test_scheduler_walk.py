"""A random walk of the scheduler: arrivals, cancellations and shortages in any order."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firesteel.engine.cache.page_tables import FULL, WINDOW, PageLayout
from firesteel.errors import RequestError
from tests.engine.scheduler_world import BOTH, World

HEAD = [1, 2, 0, 4, 1, 1, 0, 2, 4, 4, 0, 1, 2, 2, 1]  # many texts begin with some of it


class RandomWalk(RuleBasedStateMachine):
    """Arrivals, cancellations and shortages in any order."""

    @initialize(
        kinds=st.sampled_from([BOTH, BOTH, (FULL,), (WINDOW,)]),
        page_size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([1, 2, 6, 13]),
        spare=st.sampled_from([0, 1, 5, 20]),
        seqs=st.integers(1, 6),
        budget=st.sampled_from([1, 2, 5, 16, 64]),
        prompt_logits=st.integers(1, 9),
        prefix_caching=st.sampled_from([True, True, False]),
        ahead=st.sampled_from([0, 1, 4]),
        room=st.sampled_from([None, None, 1, 3]),
    )
    def start(self, kinds, page_size, window, spare, room, **options):
        """Starts with `spare` pages beyond those that one request of 24 tokens needs.

        `room` is the number of prompt tokens beside decoding requests.
        """
        layout = PageLayout(page_size=page_size, kinds=kinds, window=window)
        num_pages = layout.count_pages(24) + spare
        self.world = World(
            num_pages=num_pages,
            kinds=kinds,
            page_size=page_size,
            window=window,
            find_room=None if room is None else lambda num_decoding: room,
            **options,
        )

    @rule(
        head=st.integers(0, 15),
        tail=st.lists(st.integers(0, 1), min_size=1, max_size=8),
        count=st.integers(1, 16),
        score=st.sampled_from([False, False, False, True]),
    )
    def submit(self, head, tail, count, score):
        """Submits texts with a common prefix, so that pages are shared."""
        token_ids = [*HEAD[:head], *tail]
        try:
            self.world.submit(token_ids, count, score=score)
        except RequestError:
            assert len(token_ids) + count - 1 > 24

    @rule(count=st.integers(1, 8))
    def step(self, count):
        for _ in range(count):
            self.world.step()
            self.world.check()

    @precondition(lambda self: self.world.scheduler.jobs)
    @rule(data=st.data(), within=st.booleans())
    def cancel(self, data, within):
        """Cancels between steps, or while a step is computed."""
        name = data.draw(st.sampled_from(sorted(self.world.scheduler.jobs)))
        if within:
            self.world.step(cancelled=[name])
        else:
            self.world.cancel(name)

    @invariant()
    def holds(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.drain()
            self.world.check()
            self.world.check_end()


RandomWalk.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRandomWalk = RandomWalk.TestCase


@pytest.mark.slow
class TestLongRandomWalk(RandomWalk.TestCase):
    settings = settings(max_examples=600, stateful_step_count=150, deadline=None)


def random_world(rng, *, is_drafting=False):
    kinds = rng.choice([BOTH, BOTH, (FULL,), (WINDOW,)])
    page_size, window = rng.choice([1, 2, 4]), rng.choice([1, 2, 6, 13])
    num_pages = PageLayout(page_size=page_size, kinds=kinds, window=window).count_pages(40) + rng.choice([0, 4, 20])
    return World(
        num_pages=num_pages,
        kinds=kinds,
        page_size=page_size,
        window=window,
        seqs=rng.randrange(1, 9),
        budget=rng.choice([1, 5, 16, 64]),
        prompt_logits=rng.choice([1, 9]),
        prefix_caching=rng.random() < 0.8,
        ahead=0 if is_drafting else rng.choice([0, 3]),
        drafts=rng if is_drafting else None,
    )


@pytest.mark.parametrize("is_drafting", [False, True], ids=["plain", "drafts"])
def test_thousands_of_busy_steps_keep_pages_and_tokens_consistent(is_drafting):
    """Like the random walk, but always with many requests, so that every intended case occurs."""
    steps = preemptions = evictions = cached = surplus = accepted = 0
    for seed in range(40):
        rng = random.Random(seed)
        world = random_world(rng, is_drafting=is_drafting)
        for _ in range(60):
            for _ in range(rng.randrange(3)):
                token_ids = [*HEAD[: rng.randrange(16)], *(rng.randrange(2) for _ in range(rng.randrange(1, 6)))]
                world.submit(token_ids, rng.randrange(1, 20), score=rng.random() < 0.1)
            if world.scheduler.jobs and rng.random() < 0.1:
                world.step(cancelled=[rng.choice(list(world.scheduler.jobs))])
            world.step()
            world.check()
        world.drain()
        world.check()
        world.check_end()
        steps += len(world.plans)
        preemptions += world.scheduler.num_preemptions
        evictions += world.pool.num_evictions
        cached += sum(output.num_cached for output in world.outputs.values())
        surplus += world.num_surplus
        accepted += world.num_accepted
    assert steps > 3000 and preemptions > 100 and evictions > 1000 and cached > 1000
    assert accepted > 500 if is_drafting else surplus > 50
