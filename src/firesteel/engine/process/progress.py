"""Reports of the engine's process while it loads a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable

PROGRESS_S = 0.1  # between two reports
Report = Callable[[int, int], None]  # bytes done, bytes in all


def thin_out(send: Report) -> Report:
    """Returns a progress callback that sends the last report and only a few of those before it."""
    due = 0.0

    def report(done: int, total: int) -> None:
        nonlocal due
        if done >= total or time.monotonic() >= due:
            due = time.monotonic() + PROGRESS_S
            send(done, total)

    return report
