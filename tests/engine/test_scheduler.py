"""The scheduler over a memory that is checked token by token: no network, thousands of steps of all at once."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firesteel.config import BatchConfig
from firesteel.engine.page_pool import PagePool
from firesteel.engine.page_tables import FULL, WINDOW, PageLayout, PageTables
from firesteel.engine.scheduler import Scheduler
from firesteel.errors import RequestError
from firesteel.types import Outcome, Request, SamplingParams

BOTH = (FULL, WINDOW)
CONTEXT = 64
STOP = 30
HEAD = [1, 2, 0, 4, 1, 1, 0, 2, 4, 4, 0, 1, 2, 2, 1]  # many texts begin with some of it


def next_token(token_ids):
    """What the fake model says: it depends on all tokens and their order."""
    return hash(tuple(token_ids)) % 31


def continuation(request):
    """What a request gives, whatever else happens."""
    new = []
    while len(new) < request.max_new and STOP not in new:
        new.append(next_token([*request.token_ids, *new]))
    return new


class World:
    """A scheduler, the memory behind its pages, and everything that came out."""

    def __init__(
        self, *, num_pages=40, page_size=4, kinds=BOTH, window=6, seqs=4, budget=16, prefix_caching=True,
        prompt_logits=1000, ahead=0,
    ):  # fmt: skip
        """`ahead`: decoding steps that are computed before the tokens of the one ahead of them are known."""
        layout = PageLayout(page_size=page_size, kinds=kinds, window=window)
        self.pool = PagePool(num_pages)
        self.tables = PageTables(self.pool, layout, prefix_caching=prefix_caching)
        config = BatchConfig(page_size=page_size, max_num_seqs=seqs, max_num_batched_tokens=budget)
        self.now = 0.0
        self.scheduler = Scheduler(
            self.tables, config, max_context=CONTEXT, max_prompt_logits=prompt_logits, clock=lambda: self.now
        )
        self.memory = {}  # (page, offset) -> kind and the tokens up to it
        self.requests, self.made, self.reasons, self.outputs = {}, {}, {}, {}
        self.plans = []
        self.ahead = ahead
        self.last, self.flight, self.texts = None, [], []  # plan, (plan, tokens) computed, what the device knows
        self.num_surplus = 0

    def submit(self, token_ids, max_tokens=4, **options):
        name = str(len(self.made))
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(
            request_id=name,
            token_ids=token_ids,
            params=params,
            stops=frozenset([STOP]),
            arrival=self.now,
            **options,
        )
        self.scheduler.add(request)
        self.requests[name], self.made[name] = request, []
        return name

    def cancel(self, name):
        assert self.scheduler.cancel(name)
        del self.requests[name]

    def step(self, cancelled=()):
        self.now += 1.0
        if self.fly(cancelled):
            return
        oldest = next(iter(self.scheduler.jobs), None)
        plan = self.scheduler.next()
        self.plans.append([(span.request.request_id, span.start, span.end) for span in plan.spans])
        assert plan.num_tokens <= self.scheduler.config.max_num_batched_tokens
        assert len(self.scheduler.running) <= self.scheduler.config.max_num_seqs
        assert oldest is None or oldest in [span.request.request_id for span in plan.spans]
        if self.ahead and plan.spans and all(span.end - span.start == span.samples for span in plan.spans):
            self.texts = [list(span.token_ids) for span in plan.spans]
            self.launch(plan)
            assert self.fly(cancelled)
            return
        outcomes = []
        for span in plan.spans:
            self.compute(span)
            if span.num_logits:
                outcomes.append(Outcome(token_id=next_token(span.token_ids) if span.samples else None))
        for name in cancelled:
            self.cancel(name)
        for output in self.scheduler.commit(plan, outcomes):
            self.take(output)

    def fly(self, cancelled):
        """As the engine: goes on from the last plan, then reads the first step that is not read."""
        while self.last is not None and len(self.flight) <= self.ahead:
            plan = self.scheduler.go_on(self.last)
            if plan is None:
                self.last = None
            else:
                self.launch(plan)
        if self.flight and not self.scheduler.is_wanted(self.flight[0][0]):
            self.num_surplus += len(self.flight)
            self.flight.clear()
        if not self.flight:
            return False
        for name in cancelled:
            self.cancel(name)
        plan, tokens = self.flight.pop(0)
        self.plans.append([(span.request.request_id, span.start, span.end) for span in plan.spans])
        outputs = self.scheduler.commit(plan, [Outcome(token_id=token) for token in tokens])
        self.num_surplus += len(tokens) - len(outputs)
        for output in outputs:
            self.take(output)
        return True

    def launch(self, plan):
        for span, text in zip(plan.spans, self.texts, strict=True):
            assert span.end == len(text)
            self.compute(replace(span, token_ids=text))
            text.append(next_token(text))
        self.flight.append((plan, [text[-1] for text in self.texts]))
        self.last = plan

    def compute(self, span):
        """Reads all that attention would, then writes the new token, one after the other."""
        size, window = self.tables.page_size, self.tables.layout.window
        pages = {FULL: span.full_pages, WINDOW: span.window_pages}
        for position in range(span.start, span.end):
            for kind in self.tables.kinds:
                first = 0 if kind == FULL else max(0, position - window + 1)
                for seen in range(first, position):
                    held = self.memory.get((pages[kind][seen // size], seen % size))
                    assert held == (kind, tuple(span.token_ids[: seen + 1]))
                page = pages[kind][position // size]
                assert self.pool.holders[page] == 1, "a shared page is written"
                self.memory[page, position % size] = (kind, tuple(span.token_ids[: position + 1]))

    def take(self, output):
        self.made[output.request_id] += output.token_ids
        self.outputs[output.request_id] = output
        if output.finish_reason:
            self.reasons[output.request_id] = output.finish_reason

    def drain(self):
        for _ in range(20_000):
            if not self.scheduler.jobs:
                return
            self.step()
        raise AssertionError("requests are starved")

    def check(self):
        """Reference counts are those of the tables; every page is free, idle or held."""
        held = Counter()
        kind_of = {}
        for job in self.scheduler.jobs.values():
            assert job.is_running == (job in self.scheduler.running) != (job in self.scheduler.waiting)
            assert job.is_running or job.table.num_pages == job.num_computed == 0
            for kind, pages in job.table.pages.items():
                for page in pages[job.table.num_released if kind == WINDOW else 0 :]:
                    held[page] += 1
                    assert kind_of.setdefault(page, kind) == kind, "a page is of one kind"
        assert [held[page] for page in range(self.pool.num_pages)] == self.pool.holders
        idle, free = set(self.pool._idle), self.pool._free
        assert len(free) == len(set(free)) and not idle & set(free) and not (idle | set(free)) & set(held)
        assert len(free) + len(idle) + len(held) == self.pool.num_pages
        assert all(self.pool._page_of[key] == page for page, key in self.pool._key_of.items())
        assert len(self.pool._page_of) == len(self.pool._key_of) and idle <= set(self.pool._key_of)
        order = list(self.scheduler.jobs)
        names = [job.request.request_id for job in (*self.scheduler.running, *self.scheduler.waiting)]
        assert names == order, "first come, first served"

    def check_end(self):
        assert self.pool.num_held == 0 and self.pool.num_available == self.pool.num_pages
        assert all(not self.scheduler.is_wanted(plan) for plan, _ in self.flight)
        for name, request in self.requests.items():
            assert self.made[name] == continuation(request), name
            assert self.reasons[name] == ("stop" if STOP in self.made[name] else "length")


class RandomWalk(RuleBasedStateMachine):
    """Arrivals, cancellations and shortages in any order."""

    @initialize(
        kinds=st.sampled_from([BOTH, BOTH, (FULL,), (WINDOW,)]), page_size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([1, 2, 6, 13]), spare=st.sampled_from([0, 1, 5, 20]), seqs=st.integers(1, 6),
        budget=st.sampled_from([1, 2, 5, 16, 64]),
        prompt_logits=st.integers(1, 9), prefix_caching=st.sampled_from([True, True, False]),
        ahead=st.sampled_from([0, 1, 4]),
    )  # fmt: skip
    def start(self, kinds, page_size, window, spare, **options):
        """`spare`: pages beyond those that one request of 24 tokens needs."""
        layout = PageLayout(page_size=page_size, kinds=kinds, window=window)
        num_pages = layout.count_pages(24) + spare
        self.world = World(num_pages=num_pages, kinds=kinds, page_size=page_size, window=window, **options)

    @rule(
        head=st.integers(0, 15), tail=st.lists(st.integers(0, 1), min_size=1, max_size=8), count=st.integers(1, 16),
        score=st.sampled_from([False, False, False, True]),
    )  # fmt: skip
    def submit(self, head, tail, count, score):
        """Texts begin alike, so that pages are shared."""
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
        """Between steps, or while a step is computed."""
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


def random_world(rng):
    kinds = rng.choice([BOTH, BOTH, (FULL,), (WINDOW,)])
    page_size, window = rng.choice([1, 2, 4]), rng.choice([1, 2, 6, 13])
    num_pages = PageLayout(page_size=page_size, kinds=kinds, window=window).count_pages(40) + rng.choice([0, 4, 20])
    return World(
        num_pages=num_pages, kinds=kinds, page_size=page_size, window=window, seqs=rng.randrange(1, 9),
        budget=rng.choice([1, 5, 16, 64]), prompt_logits=rng.choice([1, 9]), prefix_caching=rng.random() < 0.8,
        ahead=rng.choice([0, 3]),
    )  # fmt: skip


def test_thousands_of_busy_steps_keep_the_books_and_the_tokens():
    """As the random walk, but always crowded: what it is meant to meet, it meets."""
    steps = preemptions = evictions = cached = surplus = 0
    for seed in range(40):
        rng = random.Random(seed)
        world = random_world(rng)
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
    assert steps > 4000 and preemptions > 100 and evictions > 1000 and cached > 1000 and surplus > 50


def begun(*lengths, new=9, **options):
    """A world with a decoding plan that is not committed."""
    world = World(**{"budget": 64, **options})
    for length in lengths:
        world.submit([1] * length, new)
    world.step()
    return world, world.scheduler.next()


def test_plan_that_goes_on_has_a_token_more_of_each_and_takes_its_pages():
    world, plan = begun(3, 4, num_pages=40)
    assert [(span.start, span.end) for span in plan.spans] == [(3, 4), (4, 5)]
    held = world.pool.num_held
    following = world.scheduler.go_on(plan)
    assert [(span.start, span.end) for span in following.spans] == [(4, 5), (5, 6)]
    assert world.pool.num_held == held + 2, "a page of each kind for the first, none for the second"


def test_plan_does_not_go_on_past_the_last_token_of_a_request():
    world, plan = begun(3, 5, new=3)
    following = world.scheduler.go_on(plan)
    assert following is not None and world.scheduler.go_on(following) is None


def test_plan_does_not_go_on_where_pages_are_short_and_nobody_gives_way_for_it():
    world, plan = begun(4, 4, num_pages=8, window=1)
    following = world.scheduler.go_on(plan)
    while following is not None:
        plan, following = following, world.scheduler.go_on(following)
    assert plan.spans[0].end == 8 and world.scheduler.num_preemptions == 0
    world.check()


def test_plan_does_not_go_on_where_someone_left_or_could_join():
    world, plan = begun(3, 4)
    world.cancel("1")
    assert world.scheduler.go_on(plan) is None
    world, plan = begun(3, 4)
    world.submit([1, 2], 3)
    assert world.scheduler.go_on(plan) is None
    world.check()


def test_plan_goes_on_where_someone_waits_who_cannot_join():
    world, plan = begun(3, 4, seqs=2)
    world.submit([1, 2], 3)
    assert world.scheduler.go_on(plan) is not None
    world, plan = begun(3, 4, num_pages=12)
    world.submit([1] * 20, 1)
    assert world.scheduler.go_on(plan) is not None
    world.check()


def test_decoding_goes_first_and_prompts_fill_the_step():
    world = World(budget=8)
    world.submit([1] * 5, 9)
    world.step()
    world.submit([2] * 20, 2)
    world.step()
    world.step()
    assert world.plans == [[("0", 0, 5)], [("0", 5, 6), ("1", 0, 7)], [("0", 6, 7), ("1", 7, 14)]]


def test_prompt_is_cut_into_what_a_step_takes():
    world = World(budget=7, num_pages=80)
    world.submit([1] * 20, 1)
    world.drain()
    assert world.plans == [[("0", 0, 7)], [("0", 7, 14)], [("0", 14, 20)]]


def test_no_more_run_than_allowed():
    world = World(seqs=2)
    for _ in range(5):
        world.submit([1, 2], 3)
    world.step()
    assert [name for name, _, _ in world.plans[0]] == ["0", "1"]
    world.drain()
    world.check_end()


def test_youngest_gives_way_when_pages_run_out_and_its_tokens_are_kept():
    world = World(num_pages=8, kinds=(FULL,), seqs=2, prefix_caching=False)
    first, second = world.submit([4] * 15, 14), world.submit([2] * 11, 14)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.next_token", lambda token_ids: len(token_ids) % 3)  # never the stop token
        world.drain()
        world.check_end()
    assert world.outputs[first].statistics.preemptions == 0 and world.outputs[second].statistics.preemptions >= 1
    assert world.scheduler.num_preemptions == world.outputs[second].statistics.preemptions
    again = next(plan for plan in world.plans[3:] if (second, 0, 11) != plan[-1] and plan[-1][:2] == (second, 0))
    assert again[-1][2] > 11, "prompt and generated tokens are computed together"


def test_request_already_in_the_plan_can_give_way_to_an_older_one():
    """A prompt whose logits are handed out slowly is still being read while younger requests decode."""
    world = World(num_pages=7, kinds=(FULL,), seqs=2, prompt_logits=1, prefix_caching=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.next_token", lambda token_ids: 0)
        first, second = world.submit([4] * 20, score=True), world.submit([2] * 4, 20)
        world.drain()
        world.check_end()
    assert world.outputs[second].statistics.preemptions == 1
    assert [(first, 12, 13)] in world.plans


def test_preempted_request_finds_its_pages_again_where_they_survived():
    world = World(num_pages=12, kinds=(FULL,), seqs=2)
    world.submit([4] * 15, 14)
    second = world.submit([2] * 11, 14)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.next_token", lambda token_ids: len(token_ids) % 3)
        world.drain()
        world.check_end()
    assert world.outputs[second].statistics.preemptions >= 1
    starts = [span[1] for plan in world.plans for span in plan if span[0] == second]
    assert starts.count(0) == 1


def test_waiting_request_is_not_overtaken_by_one_that_would_fit():
    world = World(num_pages=10, kinds=(FULL,), seqs=4)
    world.submit([1] * 20, 2)
    world.submit([2] * 24, 2)
    world.submit([4], 2)
    world.step()
    assert [name for name, _, _ in world.plans[0]] == ["0"]
    world.drain()
    assert list(world.reasons) == ["0", "1", "2"]


def test_request_is_admitted_only_where_its_prompt_fits_beside_the_others():
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


def test_second_request_with_the_same_beginning_computes_the_rest_only():
    world = World(num_pages=200, budget=64)
    world.submit(list(range(20)), 1)
    world.drain()
    second = world.submit([*range(16), 99, 98], 1)
    world.drain()
    assert world.plans[-1] == [(second, 16, 18)]
    assert world.outputs[second].num_cached == world.outputs[second].statistics.cached_tokens == 16


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


def test_cancelling_what_is_not_there_says_so():
    world = World()
    assert not world.scheduler.cancel("nobody")


def test_output_of_a_cancelled_request_does_not_reach_another_of_its_name():
    world = World()
    world.submit([1] * 3, 4)
    plan = world.scheduler.next()
    world.scheduler.cancel("0")
    world.scheduler.add(replace(world.requests["0"], token_ids=[2]))
    assert world.scheduler.commit(plan, [Outcome(token_id=1)]) == []
    assert world.scheduler.jobs["0"].token_ids == [2]


def test_row_without_a_token_ends_its_request_with_the_error():
    world = World()
    world.submit([1] * 3, 4)
    world.submit([2] * 3, 4)
    plan = world.scheduler.next()
    outputs = world.scheduler.commit(plan, [Outcome(error="NaN"), Outcome(token_id=1)])
    assert [(one.finish_reason, one.error, one.token_ids) for one in outputs] == [
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
        outputs = world.scheduler.commit(plan, [Outcome()])
    assert wanted == [(0, 7, 7, False), (7, 14, 7, False), (14, 20, 6, False)]
    assert (outputs[0].finish_reason, outputs[0].token_ids) == ("length", [])


def test_preempted_score_hands_every_row_out_once():
    world = World(num_pages=200, budget=7, prefix_caching=True)
    name = world.submit([1] * 20, score=True)
    rows = []
    for number in range(20):
        if number == 2:
            world.scheduler._preempt(world.scheduler.jobs[name], _NoDraft())
        plan = world.scheduler.next()
        for span in plan.spans:
            rows += range(span.end - span.num_logits, span.end)
        world.scheduler.commit(plan, [Outcome() for span in plan.spans if span.num_logits])
        if not world.scheduler.jobs:
            break
    assert rows == list(range(20))


def test_step_hands_out_few_prompt_logits_while_others_go_on():
    world = World(num_pages=200, budget=20, prompt_logits=6)
    for _ in range(2):
        world.submit([1] * 8, score=True)
    world.submit([2] * 5, 1)
    world.drain()
    assert world.plans == [[("0", 0, 6), ("2", 0, 5)], [("0", 6, 8), ("1", 0, 4)], [("1", 4, 8)]]


class _NoDraft:
    def drop(self, job):
        pass


def test_statistics_of_a_request_are_times_from_its_arrival():
    world = World(seqs=1)
    world.submit([1] * 3, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.next_token", lambda token_ids: 0)
        second = world.submit([2] * 3, 5)
        world.drain()
    found = world.outputs[second].statistics
    assert (found.queue_s, found.first_token_s, found.token_s) == (5.0, 5.0, 1.0)
    assert (found.prompt_tokens, found.output_tokens, found.preemptions) == (3, 5, 0)
