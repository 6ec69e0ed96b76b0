"""Progress of a download: a bar with speed and remaining time on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from firesteel.cli.tables import say

LINE_PERCENT = 5  # between two lines without a terminal


@contextmanager
def transfer_progress(label: str, held_bytes: int) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that takes bytes done and in total; `held_bytes` were there before."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield _tell_lines(held_bytes)
        return
    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(label, total=None, completed=held_bytes)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _tell_lines(held_bytes: int) -> Callable[[int, int], None]:
    start, told = time.monotonic(), -1

    def report(done: int, total: int) -> None:
        nonlocal told
        step = 100 * done // max(total, 1) // LINE_PERCENT
        if step == told:
            return
        is_first, told = told < 0, step
        line = f"{100 * done // max(total, 1)} %: {decimal(done)} of {decimal(total)}"
        rate = (done - held_bytes) / max(time.monotonic() - start, 1e-9)
        if not is_first and rate > 0:
            line += f", {decimal(int(rate))}/s, {(total - done) / rate:.0f} s left"
        say(line)

    return report
