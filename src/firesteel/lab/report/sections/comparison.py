"""The sections on changes: compared with the baseline, with earlier runs, and those of a reviewed gate."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.lab.compare.compare import FASTER, LESS_MEMORY, MORE_MEMORY, SLOWER, UNCLEAR, Change
from firesteel.lab.compare.interval import mean_interval
from firesteel.lab.compare.key_figures import pick_key_figures
from firesteel.lab.compare.samples import RunSamples
from firesteel.lab.history import list_comparable
from firesteel.lab.report.charts import ChartLine, ChartPoint, line_chart
from firesteel.lab.report.document import (
    BAD,
    DOUBTFUL,
    GOOD,
    PLAIN,
    Cell,
    Chart,
    CheckList,
    CheckRow,
    Fold,
    Paragraph,
    Part,
    Table,
)
from firesteel.lab.report.headline import REVIEW_TONES, VERDICT_TONES
from firesteel.lab.report.highlights import describe_time
from firesteel.lab.report.number_format import precise, signed_percent
from firesteel.lab.result import LabResult

MET = {True: ("met", GOOD), False: ("not met", BAD), None: ("unclear", DOUBTFUL)}
CHANGE_TONES = {SLOWER: BAD, MORE_MEMORY: BAD, FASTER: GOOD, LESS_MEMORY: GOOD, UNCLEAR: DOUBTFUL}


def review(result: LabResult) -> list[Part]:
    """Shows hypothesis, verdict, and the criteria that the comparison below does not show."""
    sheet = result.review
    if sheet is None:
        return []
    compared = result.any_comparison
    shown = [] if compared is None else [f"{row.name}: {row.figure}" for row in compared.rows]
    rows = [
        CheckRow(row.criterion, *MET[row.met], f"{row.found}\nwanted: {row.wanted}")
        for row in sheet.criteria
        if row.criterion not in shown
    ]
    sides = f"{sheet.gate}={sheet.on} compared with {sheet.off}, {sheet.rounds} rounds each"
    return [
        Paragraph(f"Hypothesis: {sheet.hypothesis}"),
        Paragraph(f"Verdict: {sheet.verdict}: {sheet.why}", REVIEW_TONES.get(sheet.verdict, DOUBTFUL)),
        Paragraph(sides),
        CheckList(rows),
    ]


def comparison(result: LabResult) -> list[Part]:
    compared = result.any_comparison
    if compared is None:
        return []
    worse = compared.regressions
    others = [row for row in compared.rows if row not in worse]
    is_clear = not compared.is_unclear or worse
    tone = VERDICT_TONES[compared.verdict] if is_clear else DOUBTFUL
    headings = ["workload", "figure", "change", "verdict", "before", "after", "interval of the change"]
    note = "in 95 % of such tables every true change is within its interval"
    table = Table(headings, [_change(row) for row in (*worse, *others)], note)
    words = f"{len(worse)} of {len(compared.rows)} figures are worse" if worse else compared.in_words()
    return [Paragraph(words, tone), *_differences(compared.differences), table]


def _differences(lines: Sequence[str]) -> list[Part]:
    """Lists what else differs between the runs, and could explain a change."""
    if not lines:
        return []
    return [Fold(f"differences of the surroundings ({len(lines)})", [Paragraph(line) for line in lines])]


def _change(row: Change) -> list[Cell | str]:
    return [
        row.name,
        row.figure,
        signed_percent(row.change),
        Cell(row.verdict, CHANGE_TONES.get(row.verdict, PLAIN)),
        f"{precise(row.before)} {row.unit}",
        f"{precise(row.after)} {row.unit}",
        row.interval,
    ]


def history(result: LabResult) -> list[Part]:
    """Draws the key figures of the earlier runs with the same settings and of this one."""
    earlier = list_comparable(result)
    if not earlier:
        return []
    figures = {figure.name: figure.samples for figure in pick_key_figures(result.counted_bench())}
    runs = [(describe_time(run.time_utc), run.engine, run.figures) for run in earlier]
    runs.append((describe_time(result.time_utc), result.release, figures))
    rows = [
        [time, engine, *(precise(held[name].median) if name in held else "" for name in figures)]
        for time, engine, held in runs
    ]
    headings = ["run", "engine", *(f"{name} {samples.unit}" for name, samples in figures.items())]
    charts = [_draw(name, [held.get(name) for _, _, held in runs]) for name in figures]
    return [*charts, Table(headings, rows, "runs with the same settings in this folder; this run is the last")]


def _draw(name: str, runs: list[RunSamples | None]) -> Chart:
    points = [
        ChartPoint(number, samples.median, mean_interval(samples.runs))
        for number, samples in enumerate(runs, 1)
        if samples is not None
    ]
    unit = next(samples.unit for samples in runs if samples is not None)
    drawing = line_chart([ChartLine(name, points)], x_title="run", y_title=unit)
    return Chart(f"{name} over the runs", drawing)
