"""A lab run's result as a report: one HTML page without network, and the same in Markdown; measures nothing.

Reads `result.json` as a dictionary. Only `levels` must be there; what else is known is shown: `engine`, `shutdown`,
`reductions` (lines), `surroundings`, `backend`, `kernels` (rows), `bench` (BenchResult.as_dict()), `peers`,
`memory`, `matrix`, `comparison`, `profile`, `review`. Those that stand in the figures of a level are found too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.report import bench, profile, sections
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, Document, Part, Section
from firesteel.lab.report.html import to_html
from firesteel.lab.report.markdown import to_markdown

NEAR = 0.05  # a profile sums to the step within this share, or the profiler slowed it
NAMES = ("backend", "kernels", "bench", "memory", "matrix", "comparison", "profile", "review")
# title, what of the result it shows, how
SECTIONS: tuple[tuple[str, str, Callable[[Any, Mapping[str, Any]], Sequence[Part]]], ...] = (
    ("Feature review", "review", sections.review),
    ("Levels", "levels", sections.levels),
    ("Backend", "backend", sections.backend),
    ("Kernels", "kernels", sections.kernels),
    ("Speed", "bench", bench.speed),
    ("Latency", "bench", bench.latency),
    ("Memory and CPU", "bench", bench.resources),
    ("Memory over time", "memory", sections.memory),
    ("Comparison", "comparison", sections.comparison),
    ("Matrix of gates", "matrix", sections.matrix),
    ("Where the time goes", "profile", profile.profile),
    ("Environment", "surroundings", sections.environment),
)


def write_report(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """report.html and report.md."""
    document = build(result)
    folder.mkdir(parents=True, exist_ok=True)
    page, text = folder / "report.html", folder / "report.md"
    page.write_text(to_html(document), encoding="utf-8")
    text.write_text(to_markdown(document), encoding="utf-8")
    return [page, text]


def read_result(path: Path) -> dict[str, Any]:
    """Of a result.json, or of a folder with one in it."""
    path = path / "result.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a result.json or its folder") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is no result of the lab: it holds {type(content).__name__}, not an object")
    return content


def build(result: Mapping[str, Any]) -> Document:
    whole = gather(result)
    verdict, tone, lines = judge(whole)
    sections = [
        Section(title, parts)
        for title, name, show in SECTIONS
        if whole.get(name) and (parts := show(whole[name], whole))
    ]
    everything = Section("Raw data", sections.raw(result))
    engine = whole.get("engine") or {}
    words = [str(engine[name]) for name in ("name", "model") if engine.get(name)]
    return Document(
        title=" · ".join(["firesteel lab", *words]), verdict=verdict, tone=tone, lines=lines,
        sections=[*sections, everything],
    )  # fmt: skip


def gather(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result with the sections that stand in its levels' figures lifted out."""
    whole = dict(result)
    figures = {str(one.get("level")): one.get("figures") or {} for one in result.get("levels") or ()}
    for name in NAMES:
        for level in figures.values():
            if not whole.get(name) and isinstance(level, Mapping) and level.get(name):
                whole[name] = level[name]
    ledger = (whole.get("backend") or {}).get("ledger") or {}
    whole.setdefault("kernels", ledger.get("ran"))
    return whole


def judge(result: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """The verdict in words, its tone, and what a reader must know before any figure."""
    levels = result.get("levels") or []
    was_run = [one for one in levels if one.get("was_run", True)]
    failed = [one for one in was_run if not one["passed"]]
    invalid = [one for one in was_run if one["passed"] and not one.get("valid", True)]
    unfinished = result.get("unfinished") or []
    lines = [f"level {one['level']} failed: {one.get('reason', '')}" for one in failed]
    lines += [f"the run ended early: level {', '.join(unfinished)} was not reached"] if unfinished else []
    if invalid or any(not one.get("valid", True) for one in failed):
        names = ", ".join(str(one["level"]) for one in was_run if not one.get("valid", True))
        lines.append(f"results of level {names} do not count: the kernel path was not the one asked for")
    lines += [
        f"level {one['level']} was not run: {one.get('reason', '')}"
        for one in levels
        if not one.get("was_run", True)
    ]
    if any("visible_change" in (one.get("figures") or {}) for one in was_run):
        lines.append("level 5 had no earlier run to compare with: this one is the baseline of the next")
    shutdown = result.get("shutdown") or {"is_clean": True}
    lines += [] if shutdown["is_clean"] else [f"the server did not end cleanly: {shutdown.get('words', '')}"]
    lines += [f"reduced: {line}" for line in result.get("reductions") or ()]
    if failed:
        return f"{len(failed)} of {len(was_run)} levels failed", BAD, lines
    if unfinished:
        return f"Ended early, after {len(levels)} of {len(levels) + len(unfinished)} levels", BAD, lines
    if invalid:
        return f"All {len(was_run)} levels passed, but {len(invalid)} do not count", BAD, lines
    if not was_run:
        return *_judge_alone(result), lines
    if not shutdown["is_clean"]:
        return f"All {len(was_run)} levels passed, but the server did not end cleanly", BAD, lines
    which = "levels" if len(was_run) == len(levels) else "levels that were run"
    return f"All {len(was_run)} {which} passed", GOOD, lines


def _judge_alone(result: Mapping[str, Any]) -> tuple[str, str]:
    """Of a result without levels: a review, a profile or a matrix."""
    if review := result.get("review"):
        tones = {"accepted": GOOD, "rejected": BAD}
        return f"{review['gate']}: {review['verdict']}", tones.get(review["verdict"], DOUBTFUL)
    if profile := result.get("profile"):
        measured = profile.get("measured_ms")
        is_near = measured is None or abs(profile["sum_ms"] / measured - 1) <= NEAR
        return str(profile.get("words", "")), GOOD if is_near else DOUBTFUL
    if matrix := result.get("matrix"):
        return str(matrix.get("words", "")), GOOD if matrix.get("all_done") else BAD
    return "No level was run", DOUBTFUL
