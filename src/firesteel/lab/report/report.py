"""Writes the report of a result: one HTML page without network requests, and the same in Markdown.

A section is shown if the result has its data, at the top level or in one of the levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from firesteel.lab.report import bench, matrix, profile, sections, slots
from firesteel.lab.report.document import Document, Part, Section
from firesteel.lab.report.headline import make_headline
from firesteel.lab.report.html import to_html
from firesteel.lab.report.markdown import to_markdown
from firesteel.lab.result import LabResult

SECTIONS: tuple[tuple[str, Callable[[LabResult], Sequence[Part]]], ...] = (
    ("Feature review", sections.review),
    ("Levels", sections.levels),
    ("Kernel path", slots.slots),
    ("Kernels", sections.kernels),
    ("Speed", bench.speed),
    ("Latency", bench.latency),
    ("Memory and CPU", bench.resources),
    ("Memory over time", sections.memory),
    ("Comparison", sections.comparison),
    ("Matrix of gates", matrix.matrix),
    ("Where the time goes", profile.profile),
    ("Environment", sections.environment),
    ("Raw data", sections.raw),
)


def write_report(result: LabResult, folder: Path) -> list[Path]:
    """Writes report.html and report.md."""
    document = build_document(result)
    folder.mkdir(parents=True, exist_ok=True)
    page, text = folder / "report.html", folder / "report.md"
    page.write_text(to_html(document), encoding="utf-8")
    text.write_text(to_markdown(document), encoding="utf-8")
    return [page, text]


def build_document(result: LabResult) -> Document:
    headline = make_headline(result)
    shown = [Section(title, parts) for title, build in SECTIONS if (parts := build(result))]
    engine = result.engine
    names = () if engine is None else (engine.name, engine.model)
    return Document(
        title=" · ".join(["firesteel lab", *(name for name in names if name)]),
        verdict=headline.words,
        tone=headline.tone,
        lines=headline.lines,
        sections=shown,
    )
