"""Writes a document as Markdown, with tables in place of drawings."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.lab.report.document import (
    BAD,
    DOUBTFUL,
    GOOD,
    Cell,
    Chart,
    Document,
    Fold,
    Paragraph,
    Part,
    Raw,
    Table,
)
from firesteel.lab.report.html import format_raw

ICONS = {GOOD: "✅ ", BAD: "❌ ", DOUBTFUL: "⚠️ "}
MAX_RAW = 20_000  # characters of one data block


def to_markdown(document: Document) -> str:
    head = [f"# {document.title}", f"**{ICONS.get(document.tone, '')}{document.verdict}**"]
    head += ["\n".join(f"- {line}" for line in document.lines)] if document.lines else []
    body = [text for section in document.sections for text in (f"## {section.title}", *_parts(section.parts))]
    return "\n\n".join([*head, *body]) + "\n"


def _parts(parts: Sequence[Part]) -> list[str]:
    return [text for part in parts for text in _part(part)]


def _part(part: Part) -> list[str]:
    match part:
        case Paragraph():
            return [ICONS.get(part.tone, "") + part.text]
        case Table():
            return [_table(part)]
        case Chart():
            note = [part.note] if part.note else []
            return [f"### {part.title}", *([_table(part.table)] if part.table else []), *note]
        case Raw():
            text = format_raw(part.content)
            text = text if len(text) <= MAX_RAW else f"{text[:MAX_RAW]}\n… the rest is in result.json"
            return [f"<details><summary>{part.title}</summary>\n\n```\n{text}\n```\n\n</details>"]
        case Fold():
            return [f"<details><summary>{part.title}</summary>", *_parts(part.parts), "</details>"]


def _table(table: Table) -> str:
    lines = [_row(table.headings), "|" + "---|" * len(table.headings), *(_row(row) for row in table.rows)]
    return "\n".join(lines) + (f"\n\n{table.caption}" if table.caption else "")


def _row(cells: Sequence[Cell | str]) -> str:
    texts = [ICONS.get(cell.tone, "") + cell.text if isinstance(cell, Cell) else str(cell) for cell in cells]
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |"
