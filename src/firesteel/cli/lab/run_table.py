"""The live table of a lab run, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from firesteel.lab.level import Level
from firesteel.lab.level_result import LevelResult
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict

REFRESHES_PER_SECOND = 8
STYLES = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "bold red",
    Verdict.UNPROVEN: "bold yellow",
    Verdict.NOT_APPLICABLE: "dim",
}
QUIET_S = 20.0  # between two progress lines without a terminal


class RunTable:
    """A row per level: waiting, running with its current step, or its result."""

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec
        self.results: dict[Level, LevelResult] = {}
        self.level: Level | None = None
        self.words = ""
        self._since = time.monotonic()

    def begin(self, level: Level) -> None:
        self.level, self.words, self._since = level, "", time.monotonic()

    def progress(self, words: str) -> None:
        self.words = words

    def end(self, result: LevelResult) -> None:
        self.results[result.level] = result
        self.level = None

    def __rich__(self) -> Table:
        table = Table(title=f"lab: {self.spec.url or self.spec.shown_engine}, {self.spec.model}", expand=True)
        table.add_column("level", no_wrap=True)
        table.add_column("result", no_wrap=True)
        table.add_column("s", justify="right", no_wrap=True)
        table.add_column("why", ratio=1, overflow="fold")
        for level in self.spec.levels:
            table.add_row(f"{level} {level.title}", *self._row(level))
        return table

    def _row(self, level: Level) -> tuple[Text | Spinner, str, Text]:
        if level in self.results:
            result = self.results[level]
            return describe_verdict(result), f"{result.seconds:.1f}", Text(result.reason)
        if level == self.level:
            return Spinner("dots", "running"), f"{time.monotonic() - self._since:.0f}", Text(self.words, "dim")
        return Text("", "dim"), "", Text("")


class PlainTable(RunTable):
    """A line per result, and occasional lines of progress, for logs and pipes."""

    def __init__(self, spec: LabSpec, console: Console, quiet_s: float = QUIET_S) -> None:
        super().__init__(spec)
        self._console, self._quiet_s = console, quiet_s
        self._last_line = time.monotonic()

    def begin(self, level: Level) -> None:
        if level != self.level:
            self._console.print(f"level {level} {level.title} ...", highlight=False)
        super().begin(level)
        self._last_line = time.monotonic()

    def progress(self, words: str) -> None:
        super().progress(words)
        now = time.monotonic()
        if self.level is not None and now - self._last_line >= self._quiet_s:
            self._last_line = now
            self._console.print(f"  level {self.level}, {now - self._since:.0f} s: {words}", highlight=False)

    def end(self, result: LevelResult) -> None:
        super().end(result)
        line = Text.assemble(
            f"level {result.level} {result.level.title}: ",
            describe_verdict(result),
            f" ({result.seconds:.1f} s) {result.reason}",
        )
        self._console.print(line, soft_wrap=True)


def describe_verdict(result: LevelResult) -> Text:
    if result.passed and not result.valid:
        return Text("INVALID", "bold red")
    return Text("FAILED" if result.failed else result.verdict.words, STYLES[result.verdict])


@contextmanager
def open_run_table(spec: LabSpec) -> Iterator[RunTable]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainTable(spec, console)
        return
    table = RunTable(spec)
    with Live(table, console=console, refresh_per_second=REFRESHES_PER_SECOND):
        yield table
