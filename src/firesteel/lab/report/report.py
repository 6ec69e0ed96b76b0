"""Writes the report of a result: one HTML page without network requests, and the same in Markdown.

A section is shown if the result has its data, at the top level or in one of the levels. Raw samples are not
repeated: the report links to the result's file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from firesteel.lab.engine_info import SHORT
from firesteel.lab.report.command import make_command
from firesteel.lab.report.document import Document, FileLink, Part, Section
from firesteel.lab.report.headline import make_headline
from firesteel.lab.report.highlights import describe_time, make_badges, make_highlights
from firesteel.lab.report.html import to_html
from firesteel.lab.report.markdown import to_markdown
from firesteel.lab.report.number_format import duration
from firesteel.lab.report.sections import (
    comparison,
    environment,
    kernel_path,
    latency,
    levels,
    matrix,
    profile,
    resources,
    speed,
)
from firesteel.lab.result import RESULT, LabResult
from firesteel.lab.spec import LabSpec

SECTIONS: tuple[tuple[str, Callable[[LabResult], Sequence[Part]]], ...] = (
    ("Feature review", comparison.review),
    ("Levels", levels.levels),
    ("Kernel path", kernel_path.kernel_path),
    ("Speed", speed.speed),
    ("Latency", latency.latency),
    ("Memory and CPU", resources.resources),
    ("Comparison", comparison.comparison),
    ("History", comparison.history),
    ("Matrix of gates", matrix.matrix),
    ("Where the time goes", profile.profile),
    ("Environment", environment.environment),
)
FILES = (RESULT, "profile.json")  # what a report is made of


def write_report(result: LabResult, folder: Path, source: Path | None = None) -> list[Path]:
    """Writes report.html and report.md; `source` is the file of the result if it is not in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    document = build_document(result, find_links(result, folder, source))
    page, text = folder / "report.html", folder / "report.md"
    page.write_text(to_html(document), encoding="utf-8")
    text.write_text(to_markdown(document), encoding="utf-8")
    return [page, text]


def find_links(result: LabResult, folder: Path, source: Path | None = None) -> list[FileLink]:
    """Returns the files that belong to a result and exist, relative to the report."""
    files = {name: folder / name for name in FILES} if source is None else {source.name: source}
    if result.engine is not None and result.engine.log:
        files["log of the server"] = Path(result.engine.log)
    bundles = [Path(level.bundle) for level in result.levels if level.bundle]
    files |= {f"crash bundle {bundle.name}": bundle for bundle in bundles}
    return [FileLink(name, os.path.relpath(path, folder)) for name, path in files.items() if path.exists()]


def build_document(result: LabResult, links: Sequence[FileLink] = ()) -> Document:
    headline = make_headline(result)
    engine = result.engine
    names = () if engine is None else (engine.name, engine.model)
    return Document(
        title=" · ".join(["firesteel lab", *(name for name in names if name)]),
        verdict=headline.words,
        tone=headline.tone,
        facts=list_facts(result),
        lines=headline.lines,
        reductions=result.reductions,
        highlights=make_highlights(result),
        badges=make_badges(result),
        findings=headline.findings,
        sections=[Section(title, parts) for title, build in SECTIONS if (parts := build(result))],
        command=make_command(result),
        links=links,
    )


def list_facts(result: LabResult) -> list[str]:
    """Returns what the header says: engine with version and commit, image, device, mode, time."""
    engine, around, spec = result.engine, result.surroundings, result.spec
    device = (None if engine is None else engine.device) or (None if around is None else around.device)
    time = result.time_utc or (None if around is None else around.time_utc)
    facts = [
        "" if engine is None else engine.release,
        "" if engine is None or not engine.image else f"image {engine.image}",
        f"client: {device}" if device and spec is not None and spec.url else device or "",
        "" if spec is None else name_levels(spec),
        describe_time(time) if time else "",
        f"took {duration(result.seconds)}" if result.seconds else "",
        _describe_lab(result),
    ]
    return [fact for fact in facts if fact]


def _describe_lab(result: LabResult) -> str:
    """Names the version and the commit of firesteel that measured, unless the engine under test is the same."""
    around = result.surroundings
    commit = "" if around is None or not around.commit else f" ({around.commit[:SHORT]})"
    words = f"firesteel {result.firesteel}{commit}"
    return f"measured by {words}" if result.firesteel and words != result.release else ""


def name_levels(spec: LabSpec) -> str:
    """Returns what the run was asked for: the levels of --level, else the mode."""
    asked = f"level {spec.level}" if spec.level else f"mode {spec.mode}"
    return f"{asked}, quick" if spec.quick else asked
