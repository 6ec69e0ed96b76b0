"""The section on a profile: categories, kernels, layers and the host."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.lab.profile.profile import HostTime, KernelTime, LayerTime
from firesteel.lab.report.charts import line_chart, line_of, stacked_chart
from firesteel.lab.report.document import Chart, Part, Table
from firesteel.lab.report.number_format import percent, short
from firesteel.lab.result import LabResult

MAX_KERNELS = 40


def profile(result: LabResult) -> list[Part]:
    measured = result.profile
    if measured is None:
        return []
    pieces = [(row.category, row.ms) for row in measured.categories]
    headings = ["category", "ms per step", "share", "GB/s"]
    rows = [[row.category, f"{row.ms:.3f}", _percent(row.share), _rate(row.gb_s)] for row in measured.categories]
    parts: list[Part] = [
        Chart("One step by category", stacked_chart(pieces, unit="ms"), Table(headings, rows)),
    ]
    parts += [_layers(measured.layers)] if len(measured.layers) > 2 else []
    parts += [_host(measured.host)] if measured.host else []
    return [*parts, *_kernels(measured.kernels)]


def _layers(rows: Sequence[LayerTime]) -> Chart:
    """Draws a line per category; the row outside layers is in the table only."""
    inside = rows[:-1]
    names = list(dict.fromkeys(name for row in inside for name in row.categories))
    lines = [
        line_of(name, [(number, row.categories.get(name, 0.0)) for number, row in enumerate(inside)])
        for name in names
    ]
    cells = [
        [row.layer, f"{row.ms:.3f}", *(f"{row.categories.get(name, 0.0):.3f}" for name in names)] for row in rows
    ]
    ticks = [float(number) for number in range(len(inside))]
    drawing = line_chart(lines, x_title="layer", y_title="ms per step", ticks=ticks)
    return Chart("By layer", drawing, Table(["layer", "ms", *names], cells))


def _host(rows: Sequence[HostTime]) -> Chart:
    pieces = [(row.stage, row.ms) for row in rows]
    table = Table(["host", "ms per step"], [[name, f"{value:.3f}"] for name, value in pieces])
    return Chart("What the host does in a step", stacked_chart(pieces, unit="ms"), table)


def _kernels(rows: Sequence[KernelTime]) -> list[Part]:
    headings = ["kernel or op", "category", "calls per step", "ms per step", "us per call", "GB/s"]
    cells = [
        [row.name, row.category, f"{row.calls:g}", f"{row.ms:.3f}", short(row.us_a_call), _rate(row.gb_s)]
        for row in rows[:MAX_KERNELS]
    ]
    return [Table(headings, cells).without_empty_columns()] if cells else []


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)


def _rate(gb_s: float | None) -> str:
    return "" if gb_s is None else short(gb_s)
