"""Calls with a larger stack than a thread gets by default, for libraries that recurse along their input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_lock = threading.Lock()


def call_with_stack(stack_bytes: int, work: Callable[[], T]) -> T:
    """Returns the result of `work`, called in a thread with a stack of `stack_bytes`."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # raised again by result()
            result.set_exception(error)

    with _lock:  # the size is a setting of the process: another thread that starts now may get it too
        before = threading.stack_size(stack_bytes)
        try:
            thread = threading.Thread(target=run)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return result.result()
