"""A scheduler over a memory that is checked token by token, without a network."""

from collections import Counter
from dataclasses import replace

from firesteel.config import BatchConfig
from firesteel.engine.cache.page_pool import PagePool
from firesteel.engine.cache.page_tables import FULL, WINDOW, PageLayout, PageTables
from firesteel.engine.sample.spans import join_drafts
from firesteel.engine.schedule.scheduler import Scheduler
from firesteel.types import Request, SamplingParams, SpanResult

BOTH = (FULL, WINDOW)
CONTEXT = 64
STOP = 30


def next_token(token_ids):
    """Returns the fake model's next token, which depends on all tokens and their order."""
    return hash(tuple(token_ids)) % 31


def continuation(request):
    """Returns the tokens of a request, which nothing else may change."""
    new = []
    while len(new) < request.max_new and STOP not in new:
        new.append(next_token([*request.token_ids, *new]))
    return new


def draft(job, rng):
    """Returns up to 5 tokens that follow a job's, of which some are wrong."""
    drafted = []
    for _ in range(rng.randrange(6)):
        drafted.append(next_token([*job.token_ids, *drafted]) if rng.random() < 0.8 else 99)
    return drafted


class World:
    """A scheduler, the memory behind its pages, and everything that came out."""

    def __init__(
        self,
        *,
        num_pages=40,
        page_size=4,
        kinds=BOTH,
        window=6,
        seqs=4,
        budget=16,
        prefix_caching=True,
        prompt_logits=1000,
        ahead=0,
        drafts=None,
        find_room=None,
    ):
        """Builds the world; `ahead` decoding steps are computed before the tokens of earlier steps are known.

        `drafts` is a random source of drafted tokens, of which some are right.
        """
        layout = PageLayout(page_size=page_size, kinds=kinds, window=window)
        self.pool = PagePool(num_pages)
        self.tables = PageTables(self.pool, layout, prefix_caching=prefix_caching)
        config = BatchConfig(page_size=page_size, max_num_seqs=seqs, max_num_batched_tokens=budget)
        self.now = 0.0
        self.scheduler = Scheduler(
            self.tables,
            config,
            max_context=CONTEXT,
            max_prompt_logits=prompt_logits,
            find_room=find_room,
            clock=lambda: self.now,
        )
        if drafts is not None:
            self.scheduler.draft_with(lambda jobs: [draft(job, drafts) for job in jobs], seqs + 6)
        self.num_accepted = 0
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
            self.texts = {id(span.token_ids): list(span.token_ids) for span in plan.spans}
            self.launch(plan)
            assert self.fly(cancelled)
            return
        results = []
        for span in plan.spans:
            text = [*span.token_ids[: span.end], *span.draft_ids]
            self.compute(replace(span, token_ids=text, end=len(text)) if span.draft_ids else span)
            if span.num_logits:
                drawn = [next_token(text[:end]) for end in range(span.end, len(text) + 1)]
                result = join_drafts(span, iter([SpanResult(token_id=token) for token in drawn]))
                self.num_accepted += len(result.following)
                results.append(result if span.samples else SpanResult())
        for name in cancelled:
            self.cancel(name)
        for output in self.scheduler.commit(plan, results):
            self.take(output)

    def fly(self, cancelled):
        """Steps as the engine does: goes on from the last plan, then reads the oldest unread step."""
        while self.last is not None and len(self.flight) <= self.ahead:
            plan = self.scheduler.plan_ahead(self.last)
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
        outputs = self.scheduler.commit(plan, [SpanResult(token_id=token) for token in tokens])
        self.num_surplus += len(tokens) - len(outputs)
        for output in outputs:
            self.take(output)
        return True

    def launch(self, plan):
        tokens = []
        for span in plan.spans:
            text = self.texts[id(span.token_ids)]
            assert span.end == len(text)
            self.compute(replace(span, token_ids=text))
            text.append(next_token(text))
            tokens.append(text[-1])
        self.flight.append((plan, tokens))
        self.last = plan

    def compute(self, span):
        """Reads everything that attention would read, then writes the new token, for one request at a time."""
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
        """Checks that reference counts match the tables, and that every page is free, idle or held."""
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
