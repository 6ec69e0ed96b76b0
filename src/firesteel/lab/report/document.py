"""The pieces that a report is made of, whatever it is written as; knows no result, no HTML and no Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

GOOD, BAD, DOUBTFUL, PLAIN = "good", "bad", "doubtful", ""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    tone: str = PLAIN
    heat: float | None = None  # 0 to 1: colours the cell


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
    """A drawing, and the same as a table for readers without pictures."""

    title: str
    svg: str
    table: Table | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Raw:
    """Data as it is, folded away."""

    title: str
    content: Any


@dataclass(frozen=True, slots=True)
class Fold:
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
