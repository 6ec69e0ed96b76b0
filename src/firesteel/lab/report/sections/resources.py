"""The section on memory and CPU: over the whole run, and what the benchmark used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firesteel.lab.memory.gpu import WHOLE
from firesteel.lab.memory.usage import ResourceUsage
from firesteel.lab.report.charts import ChartLine, line_chart, line_of
from firesteel.lab.report.document import Chart, Part, Table
from firesteel.lab.report.number_format import short
from firesteel.lab.result import LabResult

GIB = 1 << 30


def resources(result: LabResult) -> list[Part]:
    bench = result.any_bench
    usage = None if bench is None else bench.usage
    facts = [] if bench is None or bench.startup_s is None else [["start-up", f"{bench.startup_s:.1f} s"]]
    facts += [] if usage is None else _list_usage(usage)
    table = [Table(["during the benchmark", "value"], facts)] if facts else []
    return [*_memory_chart(result, usage), *table]


def _list_usage(usage: ResourceUsage) -> list[list[str]]:
    facts = [
        ["busy CPU cores", f"{usage.cores:.2f}"],
        ["peak memory of its processes", f"{usage.peak_memory_bytes / GIB:.2f} GiB"],
    ]
    if usage.peak_gpu_bytes is not None:
        scope = usage.gpu_scope or WHOLE
        facts.append([f"peak memory of the GPU, {scope}", f"{usage.peak_gpu_bytes / GIB:.2f} GiB"])
    return facts


def _memory_chart(result: LabResult, usage: ResourceUsage | None) -> list[Chart]:
    """Draws the memory of the whole run; of the benchmark alone if nothing else was sampled."""
    title, columns = "Memory over the whole run", {}
    if result.memory is not None:
        timeline = result.memory
        columns = {
            "server's processes": zip(timeline.seconds, timeline.host_bytes, strict=False),
            "GPU": zip(timeline.seconds, timeline.gpu_bytes, strict=False),
        }
    lines = _lines(columns)
    if not lines and usage is not None:
        title = "Memory during the benchmark"
        lines = _lines(
            {
                "server's processes": ((at, used) for at, used, _ in usage.memory),
                "GPU": ((at, used) for at, _, used in usage.memory),
            }
        )
    return [_draw(title, lines)] if lines else []


def _lines(columns: Mapping[str, Iterable[tuple[float, int | None]]]) -> list[ChartLine]:
    lines = []
    for name, pairs in columns.items():
        points = [(at, used / GIB) for at, used in pairs if used is not None]
        lines += [line_of(name, points)] if len(points) > 1 else []
    return lines


def _draw(title: str, lines: list[ChartLine]) -> Chart:
    last = max(line.points[-1].x for line in lines) or 1.0
    ticks = [round(last * part / 4, 1 if last < 40 else 0) for part in range(5)]
    rows = [
        [line.name, *(f"{value:.2f}" for value in (line.points[0].y, _peak(line), line.points[-1].y))]
        for line in lines
    ]
    svg = line_chart(lines, x_title="seconds", y_title="GiB", ticks=ticks, tick_format=short)
    return Chart(title, svg, Table(["memory (GiB)", "first", "peak", "last"], rows))


def _peak(line: ChartLine) -> float:
    return max(point.y for point in line.points)
