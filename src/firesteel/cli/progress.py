"""Progress bars on stderr, if it is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

Report = Callable[[int, int], None]  # done, total


@contextmanager
def progress_bar(label: str, *, in_bytes: bool = False) -> Iterator[Report]:
    """Shows a bar; yields the function that moves it."""
    sizes = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(), TimeRemainingColumn())
    stderr = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), *sizes)
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(label)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def loading_bars() -> Iterator[tuple[Report, Report]]:
    """Shows a bar of bytes read, which a bar of kernels and steps made replaces; yields a function for each."""
    with ExitStack() as stack:
        bars = [stack.enter_context(progress_bar("loading weights", in_bytes=True))]

        def report_prepared(done: int, total: int) -> None:
            if len(bars) == 1:
                stack.close()
                bars.append(stack.enter_context(progress_bar("preparing kernels and steps")))
            bars[1](done, total)

        yield bars[0], report_prepared


@contextmanager
def running(label: str) -> Iterator[None]:
    """Shows a spinner and the elapsed time."""
    stderr = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn(label), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        bar.add_task(label)
        yield
