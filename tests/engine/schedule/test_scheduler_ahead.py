"""Plans made ahead, before the tokens of earlier steps are known."""

from tests.engine.scheduler_world import World


def begun(*lengths, new=9, **options):
    """A world with a decoding plan that is not committed."""
    world = World(**{"budget": 64, **options})
    for length in lengths:
        world.submit([1] * length, new)
    world.step()
    return world, world.scheduler.next()


def test_plan_ahead_has_one_more_token_per_request_and_takes_its_pages():
    world, plan = begun(3, 4, num_pages=40)
    assert [(span.start, span.end) for span in plan.spans] == [(3, 4), (4, 5)]
    held = world.pool.num_held
    following = world.scheduler.plan_ahead(plan)
    assert [(span.start, span.end) for span in following.spans] == [(4, 5), (5, 6)]
    assert world.pool.num_held == held + 2, "a page of each kind for the first, none for the second"


def test_no_plan_ahead_past_the_last_token_of_all_requests():
    world, plan = begun(3, 5, new=3)
    following = world.scheduler.plan_ahead(plan)
    assert following is not None and world.scheduler.plan_ahead(following) is None


def test_plan_ahead_goes_on_without_requests_whose_last_token_is_computed():
    world = World(budget=64)
    world.submit([1] * 3, 3)
    world.submit([1] * 4, 9)
    world.step()
    plan = world.scheduler.next()
    following = world.scheduler.plan_ahead(plan)
    assert [span.request.request_id for span in following.spans] == ["0", "1"]
    following = world.scheduler.plan_ahead(following)
    assert [(span.request.request_id, span.start, span.end) for span in following.spans] == [("1", 6, 7)]


def test_plan_ahead_goes_on_without_requests_that_left():
    world, plan = begun(3, 4)
    following = world.scheduler.plan_ahead(plan)
    world.cancel("0")
    following = world.scheduler.plan_ahead(following)
    assert [(span.request.request_id, span.start, span.end) for span in following.spans] == [("1", 6, 7)]
    world.cancel("1")
    assert world.scheduler.plan_ahead(following) is None


def test_no_plan_ahead_and_no_preemption_if_pages_are_short():
    world, plan = begun(4, 4, num_pages=8, window=1)
    following = world.scheduler.plan_ahead(plan)
    while following is not None:
        plan, following = following, world.scheduler.plan_ahead(following)
    assert plan.spans[0].end == 8 and world.scheduler.num_preemptions == 0
    world.check()


def test_no_plan_ahead_if_a_request_could_join():
    world, plan = begun(3, 4)
    world.submit([1, 2], 3)
    assert world.scheduler.plan_ahead(plan) is None
    world.check()


def test_plan_ahead_if_the_waiting_request_cannot_join():
    world, plan = begun(3, 4, seqs=2)
    world.submit([1, 2], 3)
    assert world.scheduler.plan_ahead(plan) is not None
    world, plan = begun(3, 4, num_pages=12)
    world.submit([1] * 20, 1)
    assert world.scheduler.plan_ahead(plan) is not None
    world.check()
