"""A thread that works while the engine steps, one piece after the other; knows no engine and no piece's meaning."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

Work = Callable[[], object]


class Aside:
    """The thread begins with the first piece, and does not keep the process from ending."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[tuple[Work, Work]] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, work: Work, then: Work) -> None:
        """Comes back at once. `then` follows in the thread whatever becomes of `work`."""
        self._todo.put((work, then))
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            work, then = self._todo.get()
            try:
                work()
            finally:
                then()
