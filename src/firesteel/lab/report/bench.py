"""The sections on a benchmark: speed, latency, memory and CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from firesteel.lab.bench.peers import find_peers
from firesteel.lab.bench.result import BenchResult, BenchRow
from firesteel.lab.bench.series import PERCENTILES
from firesteel.lab.memory.gpu import WHOLE
from firesteel.lab.memory.usage import ResourceUsage
from firesteel.lab.report.charts import Bar, ChartLine, Strip, bar_chart, line_chart, short, strip_chart
from firesteel.lab.report.document import BAD, DOUBTFUL, Chart, Fold, Paragraph, Part, Raw, Table
from firesteel.lab.report.sections import GIB, memory_chart
from firesteel.lab.result import LabResult

MAX_BARS = 36  # a chart states how many it leaves out
OUR_COLOUR, PEER_COLOUR = 0, 5
ABOVE_ROOF = (
    "A share above 100 % means that fewer bytes were read than counted: concurrent requests used the same experts "
    "more often than independent routing would, or the model or its formats are not the stated ones."
)
LATENCIES = {
    "ttft_ms": "Time to the first token",
    "itl_ms": "Between tokens",
    "tpot_ms": "Time per token",
    "e2e_ms": "Whole requests",
}


def speed(result: LabResult) -> list[Part]:
    bench = result.any_bench
    if bench is None:
        return []
    rows = bench.rows
    plain = [row for row in rows if not row.workload.is_cached]
    parts: list[Part] = [Paragraph(_describe_roof(bench))]
    if bench.formats:
        parts.append(Paragraph(_describe_formats(bench.formats)))
    if bench.failures:
        parts.append(Paragraph(f"{len(bench.failures)} requests failed: their rows count the others only", BAD))
    parts.append(_speed_table(rows))
    if any((share.share or 0.0) > 1 for row in rows for share in row.shares.values()):
        parts.append(Paragraph(ABOVE_ROOF, DOUBTFUL))
    charts = (*_bars(rows), _by_depth(plain), _by_prompt(plain), _by_concurrency(plain))
    parts += [chart for chart in charts if chart is not None]
    parts += _peers(plain, bench, result)
    parts += [Paragraph(f"left out: {line}") for line in bench.left_out]
    return [*parts, Fold("raw samples of every workload", [Raw(row.name, row.as_dict()) for row in rows])]


def _describe_roof(bench: BenchResult) -> str:
    roof, plan = bench.roof, bench.plan
    runs = f"{plan.runs} runs after {plan.warmups} warm-up; definitions of llama-benchy"
    if roof is None or not any(row.shares for row in bench.rows):
        return f"{runs}; the model's sizes or formats are unknown, so figures have no bytes and no shares"
    if roof.gb_s is None:
        return f"{runs}; {roof.device}: no roofline is known, so figures have bytes but no share"
    return f"{runs}; shares are of {roof.device}'s {roof.gb_s:.0f} GB/s ({roof.of})"


def _describe_formats(formats: Mapping[str, str]) -> str:
    """Describes the precision that the figures were made with."""
    layers = formats.get("mxfp4_layers", "").replace(",", ", ")
    activation = formats.get("activation", "unknown")
    prompts = formats.get("prefill_activation", activation)
    weights = f"experts, {layers}" if layers else "experts"
    rounded = activation if prompts == activation else f"{activation}, in prompts {prompts}"
    return f"precision: {weights} in MXFP4; activations {rounded}; keys and values {formats.get('kv', 'unknown')}"


def _speed_table(rows: Sequence[BenchRow]) -> Table:
    """Leaves out columns without values, such as shares without a roofline."""
    columns: list[tuple[str, Callable[[BenchRow], str]]] = [
        ("workload", lambda row: row.name),
        ("pp tok/s", lambda row: _median(row, "pp_tok_s")),
        ("±", lambda row: _std(row, "pp_tok_s")),
        ("of roof", lambda row: _share(row, "pp_tok_s")),
        ("tg tok/s", lambda row: _median(row, "tg_tok_s")),
        ("±", lambda row: _std(row, "tg_tok_s")),
        ("MB per token", _moved),
        ("of roof", lambda row: _share(row, "tg_tok_s")),
        ("TTFT p50", lambda row: _median(row, "ttft_ms")),
        ("p99 ms", lambda row: _p99(row, "ttft_ms")),
        ("TPOT p50", lambda row: _median(row, "tpot_ms")),
        ("p99 ms", lambda row: _p99(row, "tpot_ms")),
    ]
    kept = [(name, show) for name, show in columns if any(show(row) for row in rows)]
    shown = [[show(row) for _, show in kept] for row in rows]
    return Table([name for name, _ in kept], shown, "medians; ± is the standard deviation of the runs")


def _moved(row: BenchRow) -> str:
    share = row.shares.get("tg_tok_s")
    return f"{share.bytes_a_token / 1e6:.1f}" if share else ""


def _share(row: BenchRow, figure: str) -> str:
    share = row.shares.get(figure)
    return "" if share is None or share.share is None else f"{100 * share.share:.1f} %"


def _median(row: BenchRow, figure: str) -> str:
    return short(row.series[figure].median) if figure in row.series else ""


def _std(row: BenchRow, figure: str) -> str:
    return short(row.series[figure].std) if figure in row.series else ""


def _p99(row: BenchRow, figure: str) -> str:
    return short(row.series[figure].percentile(99)) if figure in row.series else ""


def _bars(rows: Sequence[BenchRow]) -> list[Chart]:
    charts = []
    for figure, title in (("tg_tok_s", "Generation"), ("pp_tok_s", "Prompts")):
        bars = [_bar(row, figure) for row in rows if figure in row.series][:MAX_BARS]
        if bars:
            note = "red mark: the roofline" if any(bar.limit is not None for bar in bars) else ""
            table = Table([title, "tok/s"], [[bar.name, bar.label] for bar in bars])
            drawing = bar_chart(bars, unit="tok/s")
            charts.append(Chart(f"{title}, tokens per second", drawing, table, note + _left_out(rows, figure)))
    return charts


def _bar(row: BenchRow, figure: str) -> Bar:
    value = row.series[figure].median
    ceiling = row.shares[figure].ceiling_tok_s if figure in row.shares else None
    label = short(value) if ceiling is None else f"{short(value)} of {short(ceiling)}"
    return Bar(row.name, value, label, ceiling, 0 if figure == "tg_tok_s" else 2)


def _single_stream(rows: Iterable[BenchRow], figure: str) -> list[BenchRow]:
    return [row for row in rows if row.workload.concurrency == 1 and figure in row.series]


def _by_depth(rows: Sequence[BenchRow]) -> Chart | None:
    single = _single_stream(rows, "tg_tok_s")
    lengths = sorted({(row.workload.pp, row.workload.tg) for row in single})
    lines = []
    for pp, tg in lengths[:MAX_BARS]:
        same = [row for row in single if (row.workload.pp, row.workload.tg) == (pp, tg)]
        lines.append(ChartLine(f"pp{pp} tg{tg}", _points(same, "tg_tok_s", lambda row: row.workload.depth)))
    return _lines("Generation by depth", lines, "tokens before the prompt")


def _by_prompt(rows: Sequence[BenchRow]) -> Chart | None:
    single = _single_stream(rows, "pp_tok_s")
    lines = []
    for depth in sorted({row.workload.depth for row in single}):
        same = [row for row in single if row.workload.depth == depth]
        lines.append(ChartLine(f"depth {depth}", _points(same, "pp_tok_s", lambda row: row.workload.pp)))
    return _lines("Prompt speed by length", lines, "tokens of the prompt")


def _by_concurrency(rows: Sequence[BenchRow]) -> Chart | None:
    first = next((row.workload for row in rows if row.workload.concurrency > 1), None)
    if first is None:
        return None
    same = [
        row
        for row in rows
        if (row.workload.pp, row.workload.tg, row.workload.depth) == (first.pp, first.tg, first.depth)
    ]
    lines = [
        ChartLine(name, _points(same, figure, lambda row: row.workload.concurrency))
        for name, figure in (("all streams", "tg_tok_s"), ("each stream", "tg_request_tok_s"))
    ]
    return _lines("Generation by streams", lines, "concurrent streams")


def _points(
    rows: Sequence[BenchRow], figure: str, position: Callable[[BenchRow], float]
) -> list[tuple[float, float]]:
    return sorted({position(row): row.series[figure].median for row in rows if figure in row.series}.items())


def _lines(title: str, lines: Sequence[ChartLine], x_title: str) -> Chart | None:
    drawn = [line for line in lines if len(line.points) > 1]
    if not drawn:
        return None
    rows = [[line.name, short(x), short(y)] for line in drawn for x, y in line.points]
    table = Table(["line", x_title, "tok/s"], rows)
    return Chart(title, line_chart(drawn, x_title=x_title, y_title="tok/s"), table)


def _peers(rows: Sequence[BenchRow], bench: BenchResult, result: LabResult) -> list[Part]:
    """Compares the fastest single stream with other engines on the same model and GPU."""
    device, model = _find_device(bench, result), _find_model(bench, result)
    peers, single = find_peers(model, device), _single_stream(rows, "tg_tok_s")
    if not peers or not single:
        return [Paragraph(f"No figures of other engines are known for {model or 'this model'} on {device}.")]
    best = max(single, key=lambda row: row.series["tg_tok_s"].median)
    name = (result.engine.name if result.engine else "") or "this server"
    entries = [(name, best.series["tg_tok_s"].median, best.name)]
    entries += [(peer.engine, peer.tok_s, peer.source) for peer in peers]
    bars = [
        Bar(engine, value, short(value), colour=PEER_COLOUR if number else OUR_COLOUR)
        for number, (engine, value, _) in enumerate(entries)
    ]
    rows_of_table = [[engine, short(value), source] for engine, value, source in entries]
    table = Table(["engine", "tok/s", "source"], rows_of_table)
    return [Chart("One stream compared with other engines", bar_chart(bars, unit="tok/s"), table), table]


def _find_device(bench: BenchResult, result: LabResult) -> str:
    around = result.surroundings
    return (bench.roof.device if bench.roof else "") or (around.device if around else "") or "this device"


def _find_model(bench: BenchResult, result: LabResult) -> str:
    return (result.engine.model if result.engine else "") or bench.model


def _left_out(rows: Sequence[BenchRow], figure: str) -> str:
    more = sum(figure in row.series for row in rows) - MAX_BARS
    return f"; {more} more workloads are among the raw samples" if more > 0 else ""


def latency(result: LabResult) -> list[Part]:
    """Draws every sample of every workload."""
    bench = result.any_bench
    parts: list[Part] = []
    if bench is None:
        return parts
    for figure, title in LATENCIES.items():
        strips = [_strip(row, figure) for row in bench.rows if figure in row.series][:MAX_BARS]
        if strips:
            headings = [title, *(f"p{percent} ms" for percent in PERCENTILES), "samples"]
            cells = [
                [strip.name, *(short(value) for _, value in strip.marks), str(len(strip.values))]
                for strip in strips
            ]
            note = "each dot is a sample" + _left_out(bench.rows, figure)
            parts.append(Chart(title, strip_chart(strips, unit="ms"), Table(headings, cells), note))
    return parts


def _strip(row: BenchRow, figure: str) -> Strip:
    series = row.series[figure]
    marks = [(f"p{percent}", series.percentile(percent)) for percent in PERCENTILES]
    return Strip(row.name, series.values, marks)


def resources(result: LabResult) -> list[Part]:
    bench = result.any_bench
    if bench is None:
        return []
    startup = [] if bench.startup_s is None else [["start-up", f"{bench.startup_s:.1f} s"]]
    usage = [] if bench.usage is None else _list_usage(bench.usage)
    table = [Table(["during the benchmark", "value"], startup + usage)] if startup + usage else []
    return [*table, *([] if bench.usage is None else _usage_charts(bench.usage))]


def _list_usage(usage: ResourceUsage) -> list[list[str]]:
    facts = [
        ["busy CPU cores", f"{usage.cores:.2f}"],
        ["peak memory of its processes", f"{usage.peak_memory_bytes / GIB:.2f} GiB"],
    ]
    if usage.peak_gpu_bytes is not None:
        scope = usage.gpu_scope or WHOLE
        facts.append([f"peak memory of the GPU, {scope}", f"{usage.peak_gpu_bytes / GIB:.2f} GiB"])
    return facts


def _usage_charts(usage: ResourceUsage) -> list[Chart]:
    if len(usage.memory) < 2:
        return []
    host = [(at, resident / GIB) for at, resident, _ in usage.memory]
    on_gpu = [(at, used / GIB) for at, _, used in usage.memory if used is not None]
    lines = [ChartLine("server's processes", host), *([ChartLine("GPU", on_gpu)] if on_gpu else [])]
    return [memory_chart(lines)]
