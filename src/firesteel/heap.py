"""Excludes long-lived objects from Python's garbage collection.

A full collection visits every object of torch, tokenizers and the model. It takes more than 100 ms, during which
no step is launched and no token is sent.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def settle_heap() -> None:
    """Freezes all objects of a process that has finished loading: later collections visit newer objects only."""
    gc.collect()
    gc.freeze()


@contextmanager
def settled_heap() -> Iterator[None]:
    """Context-manager form of `settle_heap`."""
    settle_heap()
    try:
        yield
    finally:
        gc.unfreeze()
