"""A settled heap is not looked through again, and only as long as asked for."""

import gc

import pytest

from firesteel.heap import settled_heap


def test_what_is_there_is_left_alone_meanwhile():
    before = gc.get_freeze_count()
    with settled_heap():
        assert gc.get_freeze_count() > 1000
        ring = []
        ring.append(ring)
        del ring
        assert gc.collect() > 0, "what comes later is collected"
    assert gc.get_freeze_count() <= before


def test_an_error_ends_it_too():
    with pytest.raises(KeyError), settled_heap():
        raise KeyError
    assert not gc.get_freeze_count()
