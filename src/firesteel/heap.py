"""Keeps Python's garbage collector from what stays anyway; knows nothing that is collected.

A whole collection walks through everything that torch, tokenizers and a model's objects hold: more than 100 ms, in
which no step is launched and no token sent.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def settle_heap() -> None:
    """For a process that has loaded what it will hold to its end: later collections look at later objects alone."""
    gc.collect()
    gc.freeze()


@contextmanager
def settled_heap() -> Iterator[None]:
    """As in such a process, meanwhile."""
    settle_heap()
    try:
        yield
    finally:
        gc.unfreeze()
