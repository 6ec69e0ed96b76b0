"""The parts of a report, independent of its output format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

GOOD, BAD, DOUBTFUL, PLAIN = "good", "bad", "doubtful", ""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    tone: str = PLAIN
    heat: float | None = None  # 0 to 1, the strength of the background colour


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    tone: str = PLAIN


@dataclass(frozen=True, slots=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and the same data as a table for formats without drawings."""

    title: str
    svg: str
    table: Table | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Raw:
    """Unformatted data in a collapsed block."""

    title: str
    content: Any


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts in a collapsed block."""

    title: str
    parts: Sequence[Part]


Part = Paragraph | Table | Chart | Raw | Fold


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    title: str
    verdict: str
    tone: str
    lines: Sequence[str] = ()  # under the verdict
    sections: Sequence[Section] = field(default_factory=tuple)
