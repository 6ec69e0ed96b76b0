"""A document as one HTML page that needs no network and no script; knows no result."""

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
WIDE = 4  # columns of a table that takes the page's width
SHORT = 20  # characters of a cell that stays on one line
MOST_RAW = 2_000_000  # characters of one piece of data


def to_html(document: Document) -> str:
    links = "".join(f'<a href="#{_anchor(one)}">{escape(one.title)}</a>' for one in document.sections)
    lines = "".join(f"<li>{escape(line)}</li>" for line in document.lines)
    verdict = f"<strong>{escape(document.verdict)}</strong>" + (f"<ul>{lines}</ul>" if lines else "")
    body = "\n".join(_section(one) for one in document.sections)
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
    """Charts and small heat maps that follow each other share a grid."""
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
            return _fold(part.title, f"<pre>{escape(shown(part.content))}</pre>")
        case Fold():
            return _fold(part.title, _parts(part.parts))


def _fold(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _table(table: Table) -> str:
    rows = [[one if isinstance(one, Cell) else Cell(str(one)) for one in row] for row in table.rows]
    numeric = [
        bool(rows) and all(NUMBER.match(row[column].text) for row in rows if column < len(row))
        for column in range(len(table.headings))
    ]
    heats = [
        any(len(row) > column and row[column].heat is not None for row in rows) for column in range(len(numeric))
    ]
    kinds = [
        "heat" if is_heat else "number" if is_number else ""
        for is_heat, is_number in zip(heats, numeric, strict=True)
    ]
    head = "".join(
        f'<th class="{kind}">{escape(heading)}</th>' for heading, kind in zip(table.headings, kinds, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, row, numeric)) + "</tr>" for row in rows)
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    width = "wide" if len(table.headings) >= WIDE else ""
    content = f"{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="{width}">{content}</table></div>'


def _cell(cell: Cell, is_number: bool) -> str:
    kinds = [cell.tone] if cell.tone else []
    kinds += ["number"] if is_number else ["word"] if len(cell.text) <= SHORT else []
    style = ""
    if cell.heat is not None:
        kinds, style = [cell.tone, "heat"], f' style="--share: {cell.heat:.3f}"'
    return f'<td class="{" ".join(kinds)}"{style}>{escape(cell.text)}</td>'


def shown(content: Any) -> str:
    """Text as it is, the rest as JSON: short things on one line."""
    text = content if isinstance(content, str) else _json(content)
    return text if len(text) <= MOST_RAW else f"{text[:MOST_RAW]}\n… the rest is in result.json"


def _json(content: Any, depth: int = 0) -> str:
    flat = json.dumps(content, default=str, ensure_ascii=False)
    if len(flat) < 110 or not isinstance(content, dict | list) or depth > 6:
        return flat
    space, closing = "  " * (depth + 1), "  " * depth
    if isinstance(content, dict):
        lines = [f"{space}{json.dumps(str(key))}: {_json(value, depth + 1)}" for key, value in content.items()]
        return "{\n" + ",\n".join(lines) + f"\n{closing}}}"
    if not any(isinstance(one, dict | list) for one in content):
        return flat
    return "[\n" + ",\n".join(f"{space}{_json(one, depth + 1)}" for one in content) + f"\n{closing}]"
