"""Reports of the engine's process while it loads a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable

from firesteel.engine.process.messages import FromEngine, Loading

PROGRESS_S = 0.1  # between two messages


def progress_sender(send: Callable[[FromEngine], None]) -> Callable[[int, int], None]:
    """Returns a progress callback that sends the last report and only a few of those before it."""
    due = 0.0

    def report(done: int, total: int) -> None:
        nonlocal due
        if done >= total or time.monotonic() >= due:
            due = time.monotonic() + PROGRESS_S
            send(Loading(done_bytes=done, all_bytes=total))

    return report
