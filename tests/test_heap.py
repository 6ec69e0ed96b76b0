"""A settled heap is excluded from garbage collection, and only while requested."""

import gc

import pytest

from firesteel.heap import settled_heap


@pytest.fixture(autouse=True)
def nothing_frozen():
    """Unfreezes the heap, which the test process settles too."""
    was_frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if was_frozen:
        gc.freeze()


def test_existing_objects_are_frozen_inside_the_context():
    assert not gc.get_freeze_count()
    with settled_heap():
        assert gc.get_freeze_count() > 1000
        ring = []
        ring.append(ring)
        del ring
        assert gc.collect() > 0, "what comes later is collected"
    assert not gc.get_freeze_count()


def test_error_unfreezes_too():
    with pytest.raises(KeyError), settled_heap():
        raise KeyError
    assert not gc.get_freeze_count()
