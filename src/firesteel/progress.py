"""Progress of a call for Python users: a bar on stderr, or a callback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]  # prompts finished, total
Watch = Callable[[int, int], None]  # prompts finished and tokens made since the last call


@contextmanager
def watched(progress: bool | Report | None, total: int) -> Iterator[Watch]:
    """Yields a function to report progress to. True shows a bar; None only on a terminal with several prompts."""
    if callable(progress):
        yield _teller(progress, total)
    elif progress or (progress is None and total > 1 and sys.stderr.isatty()):
        with _bar(total) as watch:
            yield watch
    else:
        yield lambda finished, tokens: None


def _teller(report: Report, total: int) -> Watch:
    done = 0

    def watch(finished: int, tokens: int) -> None:
        nonlocal done
        done += finished
        if finished:
            report(done, total)

    return watch


@contextmanager
def _bar(total: int) -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    made, start = 0, time.monotonic()
    rate = TextColumn("{task.fields[tok_s]:.0f} tok/s")
    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("prompts", total=total, tok_s=0.0)

        def watch(finished: int, tokens: int) -> None:
            nonlocal made
            made += tokens
            bar.update(task, advance=finished, tok_s=made / max(time.monotonic() - start, 1e-9))

        yield watch
