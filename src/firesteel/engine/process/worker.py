"""A background thread that runs tasks one after the other while the engine steps."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

Task = Callable[[], object]


class BackgroundWorker:
    """Runs queued tasks in one daemon thread, which starts with the first task."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Task, Task]] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, task: Task, then: Task) -> None:
        """Queues a task and returns at once. `then` follows in the thread even if the task fails."""
        self._tasks.put((task, then))
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            task, then = self._tasks.get()
            try:
                task()
            finally:
                then()
