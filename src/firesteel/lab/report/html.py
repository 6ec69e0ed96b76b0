"""Writes a document as one HTML page without network requests or scripts."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from firesteel.lab.report.document import Cell, Chart, Document, Fold, Paragraph, Part, Raw, Section, Table
from firesteel.lab.report.style import CSS

NUMBER = re.compile(r"^[-+~≈<>]?\s?[\d][\d.,]*\s?(%|k|M|G|s|ms|us|MB|GB|GiB|tok/s|GB/s|x)?$|^$|^-$")
WIDE = 4  # columns from which a table takes the full width
SHORT = 20  # characters of a cell that is not wrapped
MAX_RAW = 2_000_000  # characters of one data block


def to_html(document: Document) -> str:
    links = "".join(f'<a href="#{_anchor(section)}">{escape(section.title)}</a>' for section in document.sections)
    lines = "".join(f"<li>{escape(line)}</li>" for line in document.lines)
    verdict = f"<strong>{escape(document.verdict)}</strong>" + (f"<ul>{lines}</ul>" if lines else "")
    body = "\n".join(_section(section) for section in document.sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(document.title)}</title><style>{CSS}</style></head>\n<body><main>"
        f'<h1>{escape(document.title)}</h1><div class="verdict {document.tone}">{verdict}</div>'
        f"<nav>{links}</nav>\n{body}</main></body></html>\n"
    )


def _section(section: Section) -> str:
    return f'<section id="{_anchor(section)}"><h2>{escape(section.title)}</h2>{_parts(section.parts)}</section>'


def _anchor(section: Section) -> str:
    return re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")


def _parts(parts: Sequence[Part]) -> str:
    """Puts consecutive charts and small heat maps into a grid."""
    written = []
    for is_drawing, group in itertools.groupby(parts, key=_is_drawing):
        pieces = "".join(_part(part) for part in group)
        written.append(f'<div class="charts">{pieces}</div>' if is_drawing else pieces)
    return "".join(written)


def _is_drawing(part: Part) -> bool:
    if not isinstance(part, Table):
        return isinstance(part, Chart)
    has_heat = any(isinstance(cell, Cell) and cell.heat is not None for row in part.rows for cell in row)
    return has_heat and len(part.headings) < WIDE


def _part(part: Part) -> str:
    match part:
        case Paragraph():
            return f'<p class="{part.tone}">{escape(part.text)}</p>'
        case Table():
            return _table(part)
        case Chart():
            note = f"<figcaption>{escape(part.note)}</figcaption>" if part.note else ""
            return f"<figure><h3>{escape(part.title)}</h3>{part.svg}{note}</figure>"
        case Raw():
            return _fold(part.title, f"<pre>{escape(format_raw(part.content))}</pre>")
        case Fold():
            return _fold(part.title, _parts(part.parts))


def _fold(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _table(table: Table) -> str:
    rows = [[cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in row] for row in table.rows]
    columns = [[row[index] for row in rows if index < len(row)] for index in range(len(table.headings))]
    numeric = [_is_numeric(cells) for cells in columns]
    head = "".join(
        f'<th class="{_heading_class(cells)}">{escape(heading)}</th>'
        for heading, cells in zip(table.headings, columns, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, row, numeric)) + "</tr>" for row in rows)
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    width = "wide" if len(table.headings) >= WIDE else ""
    content = f"{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="{width}">{content}</table></div>'


def _is_numeric(cells: Sequence[Cell]) -> bool:
    return bool(cells) and all(NUMBER.match(cell.text) for cell in cells)


def _heading_class(cells: Sequence[Cell]) -> str:
    if any(cell.heat is not None for cell in cells):
        return "heat"
    return "number" if _is_numeric(cells) else ""


def _cell(cell: Cell, is_number: bool) -> str:
    kinds = [cell.tone] if cell.tone else []
    kinds += ["number"] if is_number else ["word"] if len(cell.text) <= SHORT else []
    style = ""
    if cell.heat is not None:
        kinds, style = [cell.tone, "heat"], f' style="--share: {cell.heat:.3f}"'
    return f'<td class="{" ".join(kinds)}"{style}>{escape(cell.text)}</td>'


def format_raw(content: Any) -> str:
    """Returns text as it is, anything else as JSON with short values on one line."""
    text = content if isinstance(content, str) else _json(content)
    return text if len(text) <= MAX_RAW else f"{text[:MAX_RAW]}\n… the rest is in result.json"


def _json(content: Any, depth: int = 0) -> str:
    flat = json.dumps(content, default=str, ensure_ascii=False)
    if len(flat) < 110 or not isinstance(content, dict | list) or depth > 6:
        return flat
    space, closing = "  " * (depth + 1), "  " * depth
    if isinstance(content, dict):
        lines = [f"{space}{json.dumps(str(key))}: {_json(value, depth + 1)}" for key, value in content.items()]
        return "{\n" + ",\n".join(lines) + f"\n{closing}}}"
    if not any(isinstance(item, dict | list) for item in content):
        return flat
    return "[\n" + ",\n".join(f"{space}{_json(item, depth + 1)}" for item in content) + f"\n{closing}]"
