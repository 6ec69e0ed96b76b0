"""A request that waits for pages is not looked up in every step, and joins as soon as there are any."""

from firesteel.config import BatchConfig
from firesteel.engine.cache.page_pool import PagePool
from firesteel.engine.cache.page_tables import FULL, PageLayout, PageTables
from firesteel.engine.schedule.scheduler import Scheduler
from firesteel.types import Request, SamplingParams, SpanResult


class CountingTables(PageTables):
    """Counts how often a prompt is looked up."""

    num_opened = 0

    def open(self, table, most):
        self.num_opened += 1
        return super().open(table, most)


def make(num_pages):
    tables = CountingTables(PagePool(num_pages), PageLayout(page_size=4, kinds=(FULL,)))
    config = BatchConfig(page_size=4, max_num_seqs=4, max_num_batched_tokens=64)
    return Scheduler(tables, config, max_context=1000, max_prompt_logits=100)


def add(scheduler, name, length, max_tokens):
    """Adds a request; no two share a prefix."""
    token_ids = [len(scheduler.jobs), *range(length - 1)]
    scheduler.add(Request(request_id=name, token_ids=token_ids, params=SamplingParams(max_tokens=max_tokens)))


def step(scheduler, plan):
    return scheduler.commit(plan, [SpanResult(token_id=9) for span in plan.spans if span.num_logits])


def go_on_while_possible(scheduler, plan):
    steps = 0
    while (following := scheduler.plan_ahead(plan)) is not None:
        step(scheduler, following)
        plan, steps = following, steps + 1
    return steps


def test_prompt_without_room_is_looked_up_once_until_pages_are_freed():
    scheduler = make(num_pages=20)
    add(scheduler, "runs", 5, max_tokens=30)
    plan = scheduler.next()
    step(scheduler, plan)
    plan = scheduler.next()
    step(scheduler, plan)
    add(scheduler, "waits", 75, max_tokens=1)
    before = scheduler.tables.num_opened
    assert go_on_while_possible(scheduler, plan) == 28, "to its last token"
    assert scheduler.tables.num_opened == before + 1
    assert [span.request.request_id for span in scheduler.next().spans] == ["waits"]


def test_waiting_request_is_looked_up_again_once_pages_are_freed():
    scheduler = make(num_pages=24)
    for name in ("runs", "leaves"):
        add(scheduler, name, 17, max_tokens=30)
    step(scheduler, scheduler.next())
    plan = scheduler.next()
    step(scheduler, plan)
    add(scheduler, "waits", 61, max_tokens=1)
    assert scheduler.plan_ahead(plan) is not None, "there is no room for it"
    assert scheduler.cancel("leaves") is not None
    assert scheduler.plan_ahead(plan) is None, "there is room now"
    assert [span.request.request_id for span in scheduler.next().spans] == ["runs", "waits"]
