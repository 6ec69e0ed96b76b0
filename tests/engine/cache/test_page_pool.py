"""The page pool: allocation, remembered content and order of eviction."""

import pytest

from firesteel.engine.cache.page_pool import PagePool


def test_pages_are_handed_out_once_each():
    pool = PagePool(5)
    assert sorted(pool.take() for _ in range(5)) == [0, 1, 2, 3, 4]
    assert pool.num_available == 0 and pool.num_held == 5
    with pytest.raises(KeyError):
        pool.take()


def test_page_released_without_content_is_free_again():
    pool = PagePool(2)
    page = pool.take()
    pool.release(page)
    assert (pool.num_available, pool.num_idle, pool.num_held) == (2, 0, 0)
    assert pool.take() == page


def test_page_with_content_is_idle_and_can_be_found_again():
    pool = PagePool(2)
    page = pool.take()
    pool.remember(page, "a")
    pool.release(page)
    assert (pool.find("a"), pool.num_idle, pool.num_available) == (page, 1, 2)
    pool.hold(page)
    assert (pool.holders[page], pool.num_idle, pool.num_available) == (1, 0, 1)


def test_page_stays_until_its_last_holder_releases_it():
    pool = PagePool(1)
    page = pool.take()
    pool.remember(page, "a")
    pool.hold(page)
    pool.release(page)
    assert pool.num_available == 0
    pool.release(page)
    assert pool.num_available == 1


def test_free_pages_go_before_idle_ones_and_idle_ones_in_the_order_they_became_idle():
    pool = PagePool(4)
    pages = [pool.take() for _ in range(4)]
    for page, key in zip(pages[:3], "abc", strict=True):
        pool.remember(page, key)
    for page in (pages[1], pages[3], pages[0], pages[2]):
        pool.release(page)
    pool.hold(pages[1])
    pool.release(pages[1])  # used again: now evicted last
    assert [pool.take() for _ in range(4)] == [pages[3], pages[0], pages[2], pages[1]]
    assert [pool.find(key) for key in "abc"] == [None] * 3
    assert pool.num_evictions == 3


def test_first_page_with_a_content_is_the_one_found():
    pool = PagePool(2)
    first, second = pool.take(), pool.take()
    pool.remember(first, "a")
    pool.remember(second, "a")
    pool.release(second)
    assert pool.find("a") == first and pool.num_idle == 0 and pool.num_available == 1


def test_forgotten_content_is_not_found_and_its_page_is_free():
    pool = PagePool(2)
    idle, held = pool.take(), pool.take()
    for page, key in ((idle, "a"), (held, "b")):
        pool.remember(page, key)
    pool.release(idle)
    for key in ("a", "b", "c"):
        pool.forget(key)
    assert pool.find("a") is None and pool.find("b") is None
    assert (pool.num_idle, pool.num_available, pool.num_held) == (0, 1, 1)
    pool.release(held)
    assert (pool.num_idle, pool.num_available) == (0, 2)
