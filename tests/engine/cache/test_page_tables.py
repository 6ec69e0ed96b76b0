"""Page tables over one pool: prefix hits, released window pages and page counts."""

import itertools

import pytest

from firesteel.engine.cache.page_pool import PagePool
from firesteel.engine.cache.page_tables import FULL, WINDOW, PageLayout, PageTables, root_of

BOTH = (FULL, WINDOW)


def make(num_pages=64, page_size=4, kinds=BOTH, window=6, **options):
    layout = PageLayout(page_size=page_size, kinds=kinds, window=window)
    return PageTables(PagePool(num_pages), layout, **options)


def compute(tables, token_ids, *, chunk=1000, **options):
    """Returns a table whose tokens were computed, `chunk` at a time, and the number found in the cache."""
    table = tables.new(list(token_ids), **options)
    done = cached = tables.open(table, len(token_ids) - 1)
    while done < len(token_ids):
        before, done = done, tables.grow(table, min(done + chunk, len(token_ids)))
        assert done > before, "out of pages"
        tables.advance(table, done)
    return table, cached


def leave(tables, token_ids, **options):
    table, cached = compute(tables, token_ids, **options)
    tables.close(table)
    return cached


def held_window_pages(tables, table):
    return [page for page in table.pages[WINDOW][table.num_released :] if tables.pool.holders[page]]


@pytest.mark.parametrize(("length", "cached"), [(17, 16), (16, 12), (13, 12), (5, 4), (4, 0), (3, 0)])
def test_prefix_hit_is_of_whole_pages_and_leaves_a_token_to_compute(length, cached):
    tables = make()
    assert leave(tables, range(40)) == 0
    assert leave(tables, range(length)) == cached


def test_prefix_hit_ends_where_texts_differ_even_if_later_pages_are_alike():
    tables = make()
    leave(tables, [*range(8), 99, *range(9, 40)])
    assert leave(tables, range(40)) == 8


def test_same_page_after_another_beginning_is_not_a_hit():
    tables = make(window=1)
    leave(tables, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert leave(tables, [9, 9, 9, 9, 5, 6, 7, 8, 9]) == 0


def test_salts_keep_equal_texts_apart():
    tables = make()
    assert leave(tables, range(21), salt="a") == 0
    assert leave(tables, range(21)) == leave(tables, range(21), salt="b") == 0
    assert leave(tables, range(21), salt="a") == leave(tables, range(21)) == 20


def test_salt_cannot_continue_the_text_of_another():
    """A salt that was the digest of another text's beginning would find what follows it."""
    tables = make(kinds=(FULL,))
    first, _ = compute(tables, range(21))
    guess = first.digests[0].decode("latin-1")
    assert leave(tables, range(4, 21), salt=guess) == 0
    assert len(root_of("a")) == len(root_of("b")) != len(first.digests[0])


def test_table_that_is_not_shared_leaves_no_page():
    tables = make()
    assert leave(tables, range(21), is_shared=False) == 0
    assert tables.pool.num_idle == 0 and leave(tables, range(21)) == 0


def test_hit_holds_the_same_pages_as_the_other_request():
    tables = make()
    first, _ = compute(tables, range(21))
    second, cached = compute(tables, range(21))
    assert cached == 20
    assert first.pages[FULL][:5] == second.pages[FULL][:5] and first.pages[FULL][5] != second.pages[FULL][5]
    assert tables.pool.holders[first.pages[FULL][0]] == 2


def test_full_and_window_pages_are_never_the_same():
    tables = make()
    table, _ = compute(tables, range(40))
    again, _ = compute(tables, range(40))
    for first, second in itertools.product((table, again), repeat=2):
        assert not set(first.pages[FULL]) & set(held_window_pages(tables, second))


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize(("window", "first"), [(1, 5), (2, 4), (5, 4), (6, 3), (128, 0)])
def test_window_pages_before_the_next_tokens_window_are_released(window, first, chunk):
    """20 tokens, 4 per page: the next token, at 20, sees positions from 21 - window on."""
    tables = make(window=window)
    table, _ = compute(tables, range(20), chunk=chunk)
    assert table.num_released == first
    assert all(tables.pool.holders[page] == 1 for page in table.pages[WINDOW][first:])
    assert tables.pool.num_held == 5 + 5 - first


def test_released_page_stays_cached_for_a_shorter_prompt():
    tables = make()
    table, _ = compute(tables, range(40), chunk=1)
    assert table.num_released == 8
    assert leave(tables, range(21)) == 20


def test_prefix_hit_needs_the_window_pages_before_its_end_only():
    tables = make(num_pages=30)
    table, _ = compute(tables, range(40))  # 10 full pages, 10 window pages, 8 of these released
    tables.close(table)
    pool = tables.pool
    kept = {key for key in pool._page_of if key[0] == FULL or key[1] in table.digests[2:4]}
    for key in list(pool._page_of):
        if key not in kept:
            del pool._idle[pool._page_of[key]]
            del pool._key_of[pool._page_of.pop(key)]
    # Pages 2 and 3 of the window: a hit of 16 tokens needs 11..15 of them, one of 12 needs 7..11.
    assert leave(tables, range(40)) == 16
    assert leave(tables, range(16)) == 0


def test_grow_gives_as_many_pages_as_there_are():
    tables = make(num_pages=5)
    table = tables.new(list(range(40)))
    assert tables.open(table, 39) == 0
    assert tables.grow(table, 3) == 3 and table.num_pages == 1
    assert tables.grow(table, 40) == 8 and tables.pool.num_available == 1
    assert tables.grow(table, 40) == 8


def test_closing_gives_all_pages_back_and_the_beginning_is_forgotten_last():
    tables = make(num_pages=20, window=100)
    leave(tables, range(36))
    assert tables.pool.num_held == 0 and tables.pool.num_idle == 18
    other = tables.new([7] * 24)
    tables.open(other, 0)
    tables.grow(other, 24)  # 2 free pages and 10 idle ones
    assert tables.open(tables.new(list(range(36))), 35) == 16


def test_without_prefix_caching_nothing_is_kept():
    tables = make(prefix_caching=False)
    leave(tables, range(40))
    assert tables.pool.num_idle == 0 and leave(tables, range(40)) == 0


@pytest.mark.parametrize("kinds", [(FULL,), (WINDOW,), BOTH])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("window", [1, 2, 7, 40])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_counted_pages_are_the_most_ever_held(kinds, page_size, window, chunk):
    tables = make(num_pages=200, page_size=page_size, kinds=kinds, window=window, prefix_caching=False)
    most = 0
    for offset in range(1, min(chunk, 60) + 1):  # a first piece of any length
        table = tables.new(list(range(60)))
        done = tables.grow(table, offset)
        while True:
            most = max(most, tables.pool.num_held)
            tables.advance(table, done)
            if done == 60:
                break
            done = tables.grow(table, min(60, done + chunk))
        tables.close(table)
    counted = tables.layout.count_pages(60, chunk)
    assert most <= counted <= most + (WINDOW in kinds)
    assert tables.pool.num_available == 200


@pytest.mark.parametrize(("held", "pages"), [(0, 20), (3, 14), (10, 0), (12, 0)])
def test_pages_already_held_are_not_counted(held, pages):
    layout = PageLayout(page_size=4, kinds=BOTH, window=1000)
    assert layout.count_pages(40, held=held) == pages


@pytest.mark.parametrize("kinds", [(FULL,), (WINDOW,)])
def test_models_with_one_kind_of_layer_share_prefixes_too(kinds):
    tables = make(kinds=kinds)
    leave(tables, range(40))
    table, cached = compute(tables, range(23))
    assert cached == 20 and set(table.pages) == set(kinds)


@pytest.mark.parametrize("kinds", [BOTH, (FULL,)])
@pytest.mark.parametrize("num_pages", [2, 3, 7, 40])
def test_longest_text_is_the_longest_that_fits(kinds, num_pages):
    layout = PageLayout(page_size=4, kinds=kinds, window=6)
    longest = layout.count_tokens(num_pages)
    assert layout.count_pages(longest - 1) <= num_pages < layout.count_pages(longest)


def test_forgotten_text_is_computed_again_by_all_requests():
    """Forgetting covers released window pages, and pages that another request holds."""
    tables = make()
    leave(tables, range(40))
    other, cached = compute(tables, range(24))
    assert cached == 20
    table, _ = compute(tables, range(40))
    tables.forget(table)
    tables.close(table)
    assert leave(tables, range(40)) == 0
    tables.close(other)
    assert tables.pool.num_held == 0
