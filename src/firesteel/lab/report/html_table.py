"""Writes a table as HTML. On a narrow screen each row becomes a card, so each cell carries its column's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from firesteel.lab.report.document import ICONS, Cell, Table

NUMBER = re.compile(r"^[-+~≈<>]?\s?[\d][\d.,]*\s?(%|k|M|G|s|ms|us|MB|GB|GiB|tok/s|GB/s|x)?$|^-$")
WIDE = 4  # columns from which a table takes the full width
STACKED = 3  # columns from which rows become cards on a narrow screen
SHORT = 20  # characters of cells that are not wrapped
LONG_WORD = 24  # characters of a word, such as a path, that may be broken
AFTER_BREAK = re.compile(r"(?<=[=_,/])(?=\w)")  # places where a name may be wrapped


def has_heat(table: Table) -> bool:
    return any(isinstance(cell, Cell) and cell.heat is not None for row in table.rows for cell in row)


def is_small(table: Table) -> bool:
    """Returns true for a list of facts that fits beside a drawing."""
    texts = [cell.text if isinstance(cell, Cell) else cell for row in table.rows for cell in row[1:]]
    return len(table.headings) == 2 and max(map(len, texts), default=0) <= SHORT


def write_table(table: Table) -> str:
    rows = [[cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in row] for row in table.rows]
    columns = [[row[index] for row in rows if index < len(row)] for index in range(len(table.headings))]
    kinds = [_column_kind(cells) for cells in columns]
    head = "".join(
        f'<th scope="col"{_class(kind)}>{write_name(heading)}</th>'
        for heading, kind in zip(table.headings, kinds, strict=True)
    )
    body = "".join(_row(row, table.headings, kinds) for row in rows)
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    names = ["wide"] * (len(table.headings) >= WIDE) + ["cards"] * (len(table.headings) >= STACKED)
    content = f"{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    return f'<div class="scroll">{title}<table{_class(" ".join(names))}>{content}</table></div>'


def write_name(name: str) -> str:
    """Escapes a name and allows it to be wrapped after punctuation, so that no word of it is broken."""
    return "<wbr>".join(map(escape, AFTER_BREAK.split(name)))


def _row(row: Sequence[Cell], headings: Sequence[str], kinds: Sequence[str]) -> str:
    first = f'<th scope="row">{_content(row[0], is_name=True)}</th>'
    rest = zip(row[1:], headings[1:], kinds[1:], strict=True)
    return f"<tr>{first}{''.join(_cell(cell, heading, kind) for cell, heading, kind in rest)}</tr>"


def _column_kind(cells: Sequence[Cell]) -> str:
    if any(cell.heat is not None for cell in cells):
        return "heat"
    texts = [cell.text for cell in cells if cell.text]
    if texts and all(map(NUMBER.match, texts)):
        return "number"
    if all(len(text) <= SHORT and "\n" not in text for text in texts):
        return "word"
    return "text long" if any(len(word) > LONG_WORD for text in texts for word in text.split()) else "text"


def _cell(cell: Cell, heading: str, kind: str) -> str:
    kinds = [cell.tone] if cell.tone else []
    kinds.append(kind)
    style = ""
    if cell.heat is not None:
        kinds += ["better"] if cell.heat > 0 else ["worse"] if cell.heat < 0 else []
        style = f' style="--share:{abs(cell.heat):.2f}"'
    if not cell.text and not cell.note:
        kinds.append("empty")
    return f'<td data-label="{escape(heading)}"{_class(" ".join(filter(None, kinds)))}{style}>{_content(cell)}</td>'


def _content(cell: Cell, *, is_name: bool = False) -> str:
    lines = cell.text.split("\n")
    text = "<br>".join(write_name(line) if is_name else _write_line(line) for line in lines)
    text = f'<a href="{quote(cell.link)}">{text}</a>' if cell.link else text
    note = f" <small>{escape(cell.note)}</small>" if cell.note else ""
    icon = f'<span aria-hidden="true">{ICONS[cell.tone]}</span> ' if cell.tone else ""
    bar = "" if cell.bar is None else f'<span class="bar"><b style="width:{100 * cell.bar:.0f}%"></b></span>'
    return f"{icon}{text}{note}{bar}"


def _write_line(line: str) -> str:
    """Escapes a text; of its words, only long ones may be wrapped after punctuation."""
    return " ".join(write_name(word) if len(word) > LONG_WORD else escape(word) for word in line.split(" "))


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""
