"""The report's section on a profile: categories, kernels, layers, host; knows no format and measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.lab.report.charts import Line, line_chart, short, stacked_chart
from firesteel.lab.report.document import Chart, Part, Raw, Table

MOST_KERNELS = 40


def profile(found: Mapping[str, Any], whole: Mapping[str, Any]) -> list[Part]:
    """`found` is a Profile's dictionary; what it lacks is left out."""
    pieces = [(str(one["category"]), float(one["ms"])) for one in found["categories"]]
    rows = [[one["category"], f"{one['ms']:.3f}", _percent(one), _rate(one)] for one in found["categories"]]
    table = Table(["category", "ms a step", "share", "GB/s"], rows)
    parts: list[Part] = [
        Chart("One step by category", stacked_chart(pieces, unit="ms"), None, str(found.get("words", "")))
    ]
    parts += [_layers(found["layers"])] if len(found.get("layers") or ()) > 2 else []
    parts += [_host(found["host"])] if found.get("host") else []
    return [*parts, table, *_kernels(found.get("kernels") or ()), Raw("profile", found)]


def _layers(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """A line a category; what lies outside layers is in the table."""
    inside = rows[:-1]
    names = list(dict.fromkeys(name for row in inside for name in row if name not in ("layer", "ms")))
    lines = [Line(name, [(number, row.get(name, 0.0)) for number, row in enumerate(inside)]) for name in names]
    headings = ["layer", "ms", *names]
    cells = [[str(row["layer"]), *(f"{row.get(name, 0.0):.3f}" for name in headings[1:])] for row in rows]
    ticks = [float(number) for number in range(len(inside))]
    drawing = line_chart(lines, x_title="layer", y_title="ms a step", ticks=ticks)
    return Chart("By layer", drawing, Table(headings, cells))


def _host(rows: Sequence[Mapping[str, Any]]) -> Chart:
    pieces = [(str(one["stage"]), float(one["ms"])) for one in rows]
    table = Table(["host", "ms a step"], [[name, f"{value:.3f}"] for name, value in pieces])
    return Chart("What the host does in a step", stacked_chart(pieces, unit="ms"), table)


def _kernels(rows: Sequence[Mapping[str, Any]]) -> list[Part]:
    headings = ["kernel or op", "category", "calls a step", "ms a step", "us a call", "GB/s"]
    cells = [
        [str(one["name"]), str(one["category"]), f"{one['calls']:g}", f"{one['ms']:.3f}", short(one["us_a_call"]),
         _rate(one)]
        for one in rows[:MOST_KERNELS]
    ]  # fmt: skip
    return [Table(headings, cells)] if cells else []


def _percent(row: Mapping[str, Any]) -> str:
    return f"{100 * row['share']:.1f} %" if "share" in row else ""


def _rate(row: Mapping[str, Any]) -> str:
    return "" if row.get("gb_s") is None else short(row["gb_s"])
