"""The section on latency: samples and percentiles of every workload."""

from __future__ import annotations

from firesteel.lab.bench.result import BenchRow
from firesteel.lab.bench.series import PERCENTILES
from firesteel.lab.report.charts import SampleLine, sample_chart
from firesteel.lab.report.document import Chart, Part, Table
from firesteel.lab.report.number_format import precise
from firesteel.lab.report.sections.speed import name_row
from firesteel.lab.result import LabResult

MAX_ROWS = 12  # a chart states how many it leaves out
LATENCIES = {
    "ttft_ms": "Time to the first token",
    "itl_ms": "Between tokens",
    "tpot_ms": "Time per token",
    "e2e_ms": "Whole requests",
}


def latency(result: LabResult) -> list[Part]:
    bench = result.any_bench
    if bench is None:
        return []
    charts = []
    for figure, title in LATENCIES.items():
        rows = [_samples(row, figure) for row in bench.rows if figure in row.series]
        if rows:
            charts.append(_chart(title, rows))
    return list(charts)


def _samples(row: BenchRow, figure: str) -> SampleLine:
    series = row.series[figure]
    marks = [(f"p{rank}", series.percentile(rank)) for rank in PERCENTILES]
    return SampleLine(name_row(row), series.values, marks)


def _chart(title: str, rows: list[SampleLine]) -> Chart:
    headings = [title, *(f"p{rank} ms" for rank in PERCENTILES), "samples"]
    cells = [[row.name, *(precise(value) for _, value in row.marks), str(len(row.values))] for row in rows]
    more = len(rows) - MAX_ROWS
    note = "dots: samples; marks: p50, p90, p99" + (f"; {more} more workloads are in the table" if more > 0 else "")
    return Chart(title, sample_chart(rows[:MAX_ROWS], unit="ms"), Table(headings, cells), note)
