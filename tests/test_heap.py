"""A settled heap is not looked through again, and only as long as asked for."""

import gc

import pytest

from firesteel.heap import settled_heap


@pytest.fixture(autouse=True)
def nothing_frozen():
    """The tests' own process settles its heap too."""
    was_frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if was_frozen:
        gc.freeze()


def test_what_is_there_is_left_alone_meanwhile():
    assert not gc.get_freeze_count()
    with settled_heap():
        assert gc.get_freeze_count() > 1000
        ring = []
        ring.append(ring)
        del ring
        assert gc.collect() > 0, "what comes later is collected"
    assert not gc.get_freeze_count()


def test_an_error_ends_it_too():
    with pytest.raises(KeyError), settled_heap():
        raise KeyError
    assert not gc.get_freeze_count()
