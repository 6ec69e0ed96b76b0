"""The live table of a run of the lab; plain lines where there is no terminal; runs nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from firesteel.lab.level import TITLES, LevelResult
from firesteel.lab.spec import Order

REFRESHES_A_SECOND = 8
QUIET_S = 20.0  # between two lines of progress where there is no terminal


class Board:
    """A row a level: waiting, under way with what is done now, or its result."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.results: dict[str, LevelResult] = {}
        self.level: str | None = None
        self.words = ""
        self._since = time.monotonic()

    def begin(self, level: str) -> None:
        self.level, self.words, self._since = level, "", time.monotonic()

    def tell(self, words: str) -> None:
        self.words = words

    def end(self, result: LevelResult) -> None:
        self.results[result.level] = result
        self.level = None

    def __rich__(self) -> Table:
        table = Table(title=f"lab: {self.order.url or self.order.shown_engine}, {self.order.model}", expand=True)
        table.add_column("level", no_wrap=True)
        table.add_column("result", no_wrap=True)
        table.add_column("s", justify="right", no_wrap=True)
        table.add_column("why", ratio=1, overflow="fold")
        for level in self.order.levels:
            table.add_row(f"{level} {TITLES[level]}", *self._row(level))
        return table

    def _row(self, level: str) -> tuple[Text | Spinner, str, Text]:
        if level in self.results:
            result = self.results[level]
            return mark(result), f"{result.seconds:.1f}", Text(result.reason)
        if level == self.level:
            return Spinner("dots", "running"), f"{time.monotonic() - self._since:.0f}", Text(self.words, "dim")
        return Text("", "dim"), "", Text("")


class Lines(Board):
    """One line a result, and now and then how far a level is, for logs and pipes."""

    def __init__(self, order: Order, console: Console, quiet_s: float = QUIET_S) -> None:
        super().__init__(order)
        self._console, self._quiet_s = console, quiet_s
        self._said = time.monotonic()

    def begin(self, level: str) -> None:
        if level != self.level:
            self._console.print(f"level {level} {TITLES[level]} ...", highlight=False)
        super().begin(level)
        self._said = time.monotonic()

    def tell(self, words: str) -> None:
        super().tell(words)
        now = time.monotonic()
        if self.level is not None and now - self._said >= self._quiet_s:
            self._said = now
            self._console.print(f"  level {self.level}, {now - self._since:.0f} s: {words}", highlight=False)

    def end(self, result: LevelResult) -> None:
        super().end(result)
        line = Text.assemble(
            f"level {result.level} {result.title}: ", mark(result), f" ({result.seconds:.1f} s) {result.reason}"
        )
        self._console.print(line, soft_wrap=True)


def mark(result: LevelResult) -> Text:
    if not result.passed:
        return Text("FAILED", "bold red")
    if not result.valid:
        return Text("INVALID", "bold yellow")
    return Text("passed", "green") if result.was_run else Text("not judged", "yellow")


@contextmanager
def board(order: Order) -> Iterator[Board]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(order, console)
        return
    found = Board(order)
    with Live(found, console=console, refresh_per_second=REFRESHES_A_SECOND):
        yield found
