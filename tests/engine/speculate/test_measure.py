"""Steps that are measured before the first request touch no page of a request."""

import torch

from firesteel.engine.speculate.measure import ROWS, measure_rows
from tests.engine.drafted_requests import always, make


def test_steps_are_timed_on_the_idle_page_only(llm):
    engine = make(llm, speculate=always(), max_num_seqs=100)
    cache = engine.runner.cache
    for pages in (*cache.keys, *cache.values):
        pages.zero_()
    measured = measure_rows(engine.loop.store)
    assert list(measured) == [rows for rows in ROWS if rows <= 100] and max(measured) == 64
    assert all(ms > 0 for ms in measured.values())
    for pages in (*cache.keys, *cache.values):
        assert torch.equal(pages[: engine.idle_page], torch.zeros_like(pages[: engine.idle_page]))
        assert pages[engine.idle_page].ne(0).any()
