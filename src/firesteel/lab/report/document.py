"""The parts of a report, independent of its output format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

GOOD, BAD, DOUBTFUL, PLAIN = "good", "bad", "doubtful", ""
ICONS = {GOOD: "✓", BAD: "✗", DOUBTFUL: "?", PLAIN: "·"}  # always beside a word


@dataclass(frozen=True, slots=True)
class Cell:
    text: str  # may have several lines
    tone: str = PLAIN
    heat: float | None = None  # background: -1 worst, 0 grey, 1 best
    bar: float | None = None  # 0 to 1, the length of a bar below the text
    note: str = ""  # small text behind it
    link: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    tone: str = PLAIN


@dataclass(frozen=True, slots=True)
class Table:
    """The first column names the rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""
    title: str = ""

    def without_empty_columns(self) -> Table:
        kept = [
            index
            for index in range(len(self.headings))
            if any(row[index] not in ("", Cell("")) for row in self.rows)
        ]
        rows = [[row[index] for index in kept] for row in self.rows]
        return replace(self, headings=[self.headings[index] for index in kept], rows=rows)


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and its data as a table unless another part of the report shows them."""

    title: str
    svg: str
    table: Table | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """Something that was looked at: the verdict on it, what was found, and what would change it."""

    name: str
    status: str
    tone: str
    text: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class CheckList:
    rows: Sequence[CheckRow]


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts that unfold; with a status, its title is a verdict."""

    title: str
    parts: Sequence[Part]
    status: str = ""
    tone: str = PLAIN
    note: str = ""
    is_open: bool = False


Part = Paragraph | Table | Chart | CheckList | Fold


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Highlight:
    """A figure at the top of the page."""

    name: str
    value: str
    unit: str
    interval: str = ""
    note: str = ""
    remark: Cell | None = None  # its change since the last run, or why it does not count


@dataclass(frozen=True, slots=True)
class Badge:
    """A slot at the top of the page."""

    name: str
    value: str
    status: str
    tone: str


@dataclass(frozen=True, slots=True)
class FileLink:
    text: str
    target: str  # relative to the report


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    title: str
    verdict: str
    tone: str
    facts: Sequence[str] = ()  # under the title
    lines: Sequence[str] = ()  # under the verdict
    reductions: Sequence[str] = ()  # what was left out of the run, folded
    highlights: Sequence[Highlight] = ()
    badges: Sequence[Badge] = ()
    findings: Sequence[CheckRow] = ()  # what needs attention
    sections: Sequence[Section] = field(default_factory=tuple)
    command: str = ""  # repeats the run
    links: Sequence[FileLink] = ()
