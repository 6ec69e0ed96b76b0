"""Last pages of texts that are filled in part: taken over by the request that continues the text."""

import random

import pytest

from firesteel.engine.cache.page_pool import PagePool
from firesteel.engine.cache.page_tables import FULL, WINDOW
from firesteel.engine.cache.page_tails import MOST_BRANCHES, PageTails
from tests.engine.cache.test_page_tables import compute, leave, make


@pytest.mark.parametrize(
    ("stored", "asked", "cached"), [(10, 14, 10), (10, 10, 9), (11, 11, 10), (3, 4, 3), (3, 3, 2)]
)
def test_continued_text_finds_all_stored_tokens_but_leaves_one_to_compute(stored, asked, cached):
    tables = make()
    leave(tables, range(stored))
    assert leave(tables, range(asked)) == cached


def test_tail_is_used_as_far_as_the_texts_agree():
    tables = make(page_size=8, window=12)
    leave(tables, [*range(8), 10, 11, 12, 13])
    assert leave(tables, [*range(8), 10, 11, 99, 98, 97]) == 10


def test_taken_tail_is_not_found_by_another_request():
    """Both would write to the rest of the page."""
    tables = make()
    leave(tables, range(10))
    first, cached = compute(tables, range(12))
    second, other = compute(tables, range(12))
    assert (cached, other) == (10, 8)
    assert first.pages[FULL][2] != second.pages[FULL][2] and first.pages[WINDOW][2] != second.pages[WINDOW][2]


def test_request_that_computed_nothing_leaves_the_whole_tail():
    """A request that has to wait opens and closes its table; it must not cost others what it does not need."""
    tables = make(page_size=8, window=12)
    leave(tables, [*range(8), 10, 11, 12, 13])
    waiting = tables.new([*range(8), 10, 99, 98])
    assert tables.open(waiting, 10) == 9
    tables.close(waiting)
    assert leave(tables, [*range(8), 10, 11, 12, 13, 14]) == 12


def test_tokens_behind_the_common_ones_are_lost_once_the_request_may_write():
    """A request was cancelled while its first step ran: the page had its token, and the tail said otherwise."""
    tables = make(page_size=8, window=12)
    leave(tables, [*range(8), 10, 11, 12, 13])
    cancelled = tables.new([*range(8), 10, 99, 98])
    assert tables.open(cancelled, 10) == 9
    tables.grow(cancelled, 11)
    tables.close(cancelled)
    assert leave(tables, [*range(8), 10, 11, 12, 13, 14]) == 9


def test_page_filled_after_it_was_taken_is_shared_like_any_other():
    tables = make()
    leave(tables, range(10))
    first, _ = compute(tables, range(13))
    second, cached = compute(tables, range(13))
    assert cached == 12 and first.pages[FULL][2] == second.pages[FULL][2]


def test_evicted_tail_is_not_found():
    tables = make(num_pages=6)
    leave(tables, range(10))
    leave(tables, range(100, 112))
    assert leave(tables, range(11)) <= 8


def test_wrong_content_leaves_no_tail():
    tables = make()
    table, _ = compute(tables, range(10))
    tables.forget(table)
    tables.close(table)
    assert leave(tables, range(11)) == 0


@pytest.mark.parametrize("options", [{"is_shared": False}, {"salt": "other"}])
def test_tail_of_a_text_that_is_kept_apart_is_not_found(options):
    tables = make()
    leave(tables, range(10), **options)
    assert leave(tables, range(11)) == 0


def test_without_prefix_caching_there_is_no_tail():
    tables = make(prefix_caching=False)
    leave(tables, range(10))
    assert tables.pool.num_idle == 0 and leave(tables, range(11)) == 0


def test_texts_that_go_on_differently_keep_their_tails_up_to_a_limit():
    tables = make(num_pages=200, page_size=8, window=12)
    texts = [[*range(8), 100 + number, 1, 2] for number in range(MOST_BRANCHES + 1)]
    for text in texts:
        leave(tables, text)
    cached = [leave(tables, [*text, 3]) for text in reversed(texts)]
    assert cached == [11] * MOST_BRANCHES + [8], "the oldest gave way"


def test_number_of_tails_is_bounded_by_the_pages():
    pool = PagePool(4)
    tails = PageTails(pool)
    for number in range(100):
        page = pool.take()
        tails.keep(bytes([number]), [number], {FULL: page})
        pool.release(page)
    assert sum(map(len, tails._branches.values())) == tails._num_kept <= 5


@pytest.mark.parametrize("seed", range(20))
def test_random_texts_never_share_a_page_that_is_written_to(seed):
    """Each page has what its holder stored: tokens are tracked by page and slot, as a model would write them."""
    rng = random.Random(seed)
    tables = make(num_pages=rng.randrange(20, 60))
    content = {}
    live = []
    for _ in range(300):
        if live and (rng.random() < 0.4 or tables.pool.num_available < 14):
            tables.close(live.pop(rng.randrange(len(live))))
            continue
        text = [rng.randrange(2) for _ in range(rng.randrange(2, 24))]
        table = tables.new(text, is_shared=rng.random() < 0.9)
        done = tables.open(table, len(text) - 1)
        check(tables, table, done, content)
        while done < len(text):
            end = tables.grow(table, min(len(text), done + rng.randrange(1, 9)))
            if end == done:
                break
            for kind in (FULL, WINDOW):
                for position in range(done, end):
                    assert tables.pool.holders[table.pages[kind][position // 4]] == 1
                    content[table.pages[kind][position // 4], position % 4] = tuple(text[: position + 1])
            done = end
            tables.advance(table, done)
        check(tables, table, done, content)
        live.append(table)
    for table in live:
        tables.close(table)
    assert tables.pool.num_held == 0


def check(tables, table, done, content):
    """Every token that later ones attend to is in its page, with the tokens before it."""
    first = {FULL: 0, WINDOW: tables.layout.first_seen(done)}
    for kind in (FULL, WINDOW):
        for position in range(first[kind], done):
            stored = content[table.pages[kind][position // 4], position % 4]
            assert stored == tuple(table.token_ids[: position + 1])
