"""Writes a document as one HTML page without network requests; its only script copies the command."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from firesteel.lab.report.document import (
    ICONS,
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
    Section,
    Table,
)
from firesteel.lab.report.html_table import WIDE, has_heat, is_small, write_name, write_table

STYLE, COPY = (Path(__file__).with_name(name) for name in ("page.css", "copy.js"))


def to_html(document: Document) -> str:
    style = re.sub(r"\s*\n\s*", "\n", STYLE.read_text(encoding="utf-8"))
    body = "\n".join(_section(section) for section in document.sections)
    script = f"<script>\n{COPY.read_text(encoding='utf-8')}</script>" if document.command else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(document.title)}: {escape(document.verdict)}</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>{_head(document)}\n{body}</main>{script}</body></html>\n"
    )


def _head(document: Document) -> str:
    """Writes all that comes before the first section."""
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in document.facts)
    lines = "".join(f"<li>{escape(line)}</li>" for line in document.lines)
    reduced = _list("".join(f"<li>{escape(line)}</li>" for line in document.reductions), "lines")
    if reduced:
        number = len(document.reductions)
        title = f"{number} part{'s' * (number > 1)} of this run {'were' if number > 1 else 'was'} reduced"
        reduced = f"<details><summary>{title}</summary>{reduced}</details>"
    words = f"<strong>{escape(document.verdict)}</strong>{_list(lines, 'lines')}{reduced}"
    links = "".join(f'<a href="#{_anchor(section)}">{escape(section.title)}</a>' for section in document.sections)
    attention = f"<h2>What needs attention</h2>{_findings(document.findings)}" if document.findings else ""
    return (
        f"<header><h1>{escape(document.title)}</h1>{_list(facts, 'facts')}</header>\n"
        f'<div class="verdict {document.tone}">{_icon(document.tone)}<div>{words}</div></div>\n'
        f"{_list(''.join(map(_highlight, document.highlights)), 'highlights', 'Key figures')}\n"
        f"{_list(''.join(map(_badge, document.badges)), 'badges', 'Slots of the kernel path')}\n"
        + (f'<section class="attention">{attention}</section>\n' if attention else "")
        + _files(document)
        + (f'<nav aria-label="Sections">{links}</nav>\n' if len(document.sections) > 1 else "")
    )


def _list(items: str, kind: str, label: str = "") -> str:
    named = f' aria-label="{label}"' if label else ""
    return f'<ul class="{kind}"{named}>{items}</ul>' if items else ""


def _highlight(figure: Highlight) -> str:
    remark = figure.remark or Cell("")
    remark_text = "<br>".join(map(escape, remark.text.split("\n")))
    lines = (
        f'<span class="name">{escape(figure.name)}</span>',
        f"<span><strong>{escape(figure.value)}</strong> {escape(figure.unit)}</span>",
        *(f"<small>{escape(words)}</small>" for words in (figure.interval, figure.note) if words),
        f'<small class="remark {remark.tone}">{remark_text}</small>' if remark.text else "",
    )
    return f"<li>{''.join(lines)}</li>"


def _badge(badge: Badge) -> str:
    name = f'<span class="name">{escape(badge.name)}</span>'
    value = f"<b>{write_name(badge.value)}</b>" if badge.value else ""
    return (
        f'<li class="{badge.tone or "plain"}">{_icon(badge.tone)}<span>{name} '
        f"{value}<small>{escape(badge.status)}</small></span></li>"
    )


def _files(document: Document) -> str:
    """Writes the command that repeats the run, to be selected as a whole, and links to files beside the page."""
    field = ""
    if document.command:
        rows = 1 + len(document.command) // 100
        field = f'<label>Run it again<textarea readonly rows="{rows}">{escape(document.command)}</textarea></label>'
    links = "".join(f'<li><a href="{quote(link.target)}">{escape(link.text)}</a></li>' for link in document.links)
    content = field + _list(links, "links", "Files")
    return f'<div class="files">{content}</div>\n' if content else ""


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
    if isinstance(part, Table):
        return is_small(part) or (has_heat(part) and len(part.headings) < WIDE)
    return isinstance(part, Chart)


def _part(part: Part) -> str:
    match part:
        case Paragraph():
            return f'<p class="{part.tone}">{escape(part.text)}</p>' if part.tone else f"<p>{escape(part.text)}</p>"
        case Table():
            return write_table(part)
        case Chart():
            return _chart(part)
        case CheckList():
            return _findings(part.rows)
        case Fold():
            return _fold(part)


def _chart(chart: Chart) -> str:
    drawing = chart.svg.replace("<svg ", f'<svg aria-label="{escape(chart.title)}" ', 1)
    note = f"<figcaption>{escape(chart.note)}</figcaption>" if chart.note else ""
    table = "" if chart.table is None else _fold(Fold("as a table", [chart.table]))
    return f"<figure><h3>{escape(chart.title)}</h3>{drawing}{note}{table}</figure>"


def _findings(rows: Sequence[CheckRow]) -> str:
    items = []
    for row in rows:
        text = "<br>".join(map(escape, row.text.split("\n")))
        words = f"<p>{text}</p>" if row.text else ""
        cure = (
            f'<p class="cure"><b>Cure</b> {"<br>".join(map(escape, row.cure.split("; ")))}</p>' if row.cure else ""
        )
        name = f'<b>{escape(row.name)}</b> <span class="status {row.tone}">{escape(row.status)}</span>'
        items.append(f"<li>{_icon(row.tone)}<div><p>{name}</p>{words}{cure}</div></li>")
    return _list("".join(items), "findings")


def _fold(fold: Fold) -> str:
    title = escape(fold.title)
    if fold.status:
        status = f'<span class="status {fold.tone}">{escape(fold.status)}</span>'
        title = f"{_icon(fold.tone)}<b>{title}</b> {status} <small>{escape(fold.note)}</small>"
    kind = f' class="level {fold.tone}"' if fold.status else ""
    opened = " open" if fold.is_open else ""
    return f"<details{kind}{opened}><summary>{title}</summary>{_parts(fold.parts)}</details>"


def _icon(tone: str) -> str:
    """Writes the sign of a verdict, which is always beside its words."""
    return f'<span class="icon {tone or "plain"}" aria-hidden="true">{ICONS[tone]}</span>'
