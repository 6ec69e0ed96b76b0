"""A background thread that runs tasks one after the other while the engine steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


class BackgroundWorker:
    """Runs queued tasks in one daemon thread, which starts with the first task."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, task: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Queues a task and returns at once. `then` gets its outcome, in the thread."""
        self._tasks.put(lambda: then(_run(task)))
        if self._thread is None:
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._tasks.get()()


def _run(task: Callable[[], T]) -> Future[T]:
    outcome: Future[T] = Future()
    try:
        outcome.set_result(task())
    except BaseException as error:  # a panic is not an Exception; result() raises it again
        outcome.set_exception(error)
    return outcome
