"""Writes a document as Markdown, with tables in place of drawings."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from firesteel.lab.report.document import (
    BAD,
    DOUBTFUL,
    GOOD,
    Badge,
    Cell,
    Chart,
    CheckList,
    CheckRow,
    Document,
    Fold,
    Highlight,
    Paragraph,
    Part,
    Table,
)

ICONS = {GOOD: "✅ ", BAD: "❌ ", DOUBTFUL: "⚠️ "}


def to_markdown(document: Document) -> str:
    reductions = [f"reduced: {line}" for line in document.reductions]
    head = [f"# {document.title}", " · ".join(document.facts), f"**{_icon(document.tone)}{document.verdict}**"]
    head.append("\n".join(f"- {line}" for line in (*document.lines, *reductions)))
    head += [_highlights(document.highlights)] if document.highlights else []
    head += [_table(_badges(document.badges))] if document.badges else []
    head += [f"## What needs attention\n\n{_findings(document.findings)}"] if document.findings else []
    head += [f"Run it again:\n\n```\n{document.command}\n```"] if document.command else []
    head.append(" · ".join(f"[{link.text}]({quote(link.target)})" for link in document.links))
    body = [text for section in document.sections for text in (f"## {section.title}", *_parts(section.parts))]
    return "\n\n".join(text for text in (*head, *body) if text) + "\n"


def _highlights(figures: Sequence[Highlight]) -> str:
    rows = [
        [
            figure.name,
            f"**{figure.value}** {figure.unit}",
            figure.interval,
            figure.note,
            figure.remark or "",
        ]
        for figure in figures
    ]
    return _table(Table(["figure", "median", "interval", "of", "change"], rows))


def _badges(badges: Sequence[Badge]) -> Table:
    cells = [Cell(f"{badge.value} {badge.status}".strip(), badge.tone) for badge in badges]
    return Table([badge.name for badge in badges], [cells])


def _parts(parts: Sequence[Part]) -> list[str]:
    return [text for part in parts for text in _part(part)]


def _part(part: Part) -> list[str]:
    match part:
        case Paragraph():
            return [_icon(part.tone) + part.text]
        case Table():
            return [_table(part)]
        case Chart():
            note = [part.note] if part.note else []
            return [] if part.table is None else [f"### {part.title}", _table(part.table), *note]
        case CheckList():
            return [_findings(part.rows)]
        case Fold():
            words = ", ".join(word for word in (part.status, part.note) if word)
            title = _icon(part.tone) + part.title + (f": {words}" if words else "")
            return [f"<details><summary>{title}</summary>", *_parts(part.parts), "</details>"]


def _findings(rows: Sequence[CheckRow]) -> str:
    lines = []
    for row in rows:
        words = " ".join(word for word in (f"**{row.name}** {row.status}:", row.text) if word)
        lines.append(f"- {_icon(row.tone)}{words}".replace("\n", " / ").rstrip(":"))
        lines += [f"  - cure: {row.cure}"] if row.cure else []
    return "\n".join(lines)


def _table(table: Table) -> str:
    title = [f"**{table.title}**", ""] if table.title else []
    lines = [*title, _row(table.headings), "|" + "---|" * len(table.headings), *(_row(row) for row in table.rows)]
    return "\n".join(lines) + (f"\n\n{table.caption}" if table.caption else "")


def _row(cells: Sequence[Cell | str]) -> str:
    texts = [_cell(cell) if isinstance(cell, Cell) else str(cell) for cell in cells]
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", "<br>") for text in texts) + " |"


def _cell(cell: Cell) -> str:
    text = f"[{cell.text}]({quote(cell.link)})" if cell.link else cell.text
    return _icon(cell.tone) + text + (f" ({cell.note})" if cell.note else "")


def _icon(tone: str) -> str:
    return ICONS.get(tone, "")
