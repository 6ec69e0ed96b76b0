"""The section on the speed of a benchmark: a row per workload, and lines by depth, prompt length and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from firesteel.lab.bench.formats import DENSE, KV, LAYERS, MOE, SOURCE
from firesteel.lab.bench.headline import find_headline
from firesteel.lab.bench.peers import find_peers
from firesteel.lab.bench.result import FOLLOW_UP, BenchResult, BenchRow
from firesteel.lab.compare.interval import mean_interval
from firesteel.lab.compare.samples import average_by_run
from firesteel.lab.report.charts import ChartLine, ChartPoint, line_chart
from firesteel.lab.report.document import BAD, DOUBTFUL, Cell, Chart, Paragraph, Part, Table
from firesteel.lab.report.number_format import count, percent, precise, short
from firesteel.lab.result import LabResult

ABOVE_ROOF = (
    "A share above 100 % means that fewer bytes were read than counted: concurrent requests used the same experts "
    "more often than independent routing would, or the model or its formats are not the stated ones."
)
Column = tuple[str, Callable[[BenchRow], Cell | str]]


def speed(result: LabResult) -> list[Part]:
    bench = result.any_bench
    if bench is None:
        return []
    plain = [row for row in bench.rows if not row.workload.is_cached]
    parts: list[Part] = [Paragraph(_describe_roof(bench))]
    if bench.formats:
        parts.append(Paragraph(_describe_formats(bench.formats)))
    if bench.failures:
        parts.append(Paragraph(f"{len(bench.failures)} requests failed: their rows count the others only", BAD))
    parts += [Paragraph(f"doubtful: {doubt}", DOUBTFUL) for doubt in bench.doubts]
    if bench.speculation is not None:
        parts.append(Paragraph(f"speculation: {bench.speculation.in_words()} ({bench.speculation.source})"))
    parts.append(_speed_table(bench.rows))
    if any((share.share or 0.0) > 1 for row in bench.rows for share in row.shares.values()):
        parts.append(Paragraph(ABOVE_ROOF, DOUBTFUL))
    charts = (_by_depth(plain), _by_prompt(plain), _by_concurrency(plain))
    parts += [chart for chart in charts if chart is not None]
    parts += _peers(bench, result)
    return parts + [Paragraph(f"left out: {line}") for line in bench.left_out]


def _describe_roof(bench: BenchResult) -> str:
    roof, plan = bench.roof, bench.plan
    runs = f"{plan.runs} runs after {plan.warmups} warm-up; definitions of llama-benchy"
    if roof is None or not any(row.shares for row in bench.rows):
        return f"{runs}; the model's sizes or formats are unknown (see --formats), so figures have no shares"
    if roof.gb_s is None:
        return f"{runs}; {roof.device}: no roofline is known, so figures have bytes but no share"
    return f"{runs}; shares are of {roof.device}'s {roof.gb_s:.0f} GB/s ({roof.of})"


def _describe_formats(formats: Mapping[str, str]) -> str:
    """Describes the precision that the figures were made with."""
    layers = formats.get(LAYERS, "").replace(",", ", ")
    if DENSE in formats:
        dense = f"{layers} mxfp4, other dense layers" if layers else "dense layers"
        experts, cache = formats.get(MOE, "unknown"), formats.get(KV, "unknown")
        said = f" (by {formats[SOURCE]})" if SOURCE in formats else ""
        return f"precision: experts {experts}, {dense} {formats[DENSE]}, keys and values {cache}{said}"
    activation = formats.get("activation", "unknown")
    prompts = formats.get("prefill_activation", activation)
    weights = f"experts, {layers}" if layers else "experts"
    rounded = activation if prompts == activation else f"{activation}, in prompts {prompts}"
    return f"precision: {weights} in MXFP4; activations {rounded}; keys and values {formats.get(KV, 'unknown')}"


def _speed_table(rows: Sequence[BenchRow]) -> Table:
    columns: list[Column] = [
        ("workload", name_row),
        ("pp tok/s", lambda row: _speed(row, "pp_tok_s")),
        ("pp of roof", lambda row: _share(row, "pp_tok_s")),
        ("tg tok/s", lambda row: _speed(row, "tg_tok_s")),
        ("tg of roof", lambda row: _share(row, "tg_tok_s")),
        ("MB per token", _moved),
        ("TTFT p50 ms", lambda row: _percentile(row, "ttft_ms", 50)),
        ("TTFT p99 ms", lambda row: _percentile(row, "ttft_ms", 99)),
        ("TPOT p50 ms", lambda row: _percentile(row, "tpot_ms", 50)),
        ("TPOT p99 ms", lambda row: _percentile(row, "tpot_ms", 99)),
    ]
    shown = [[show(row) for _, show in columns] for row in rows]
    caption = "medians, ± standard deviation of the runs"
    return Table([name for name, _ in columns], shown, caption).without_empty_columns()


def name_row(row: BenchRow) -> str:
    """Returns the name of a workload in few words."""
    return f"{row.workload.name}, cached" if row.phase == FOLLOW_UP else row.name


def _speed(row: BenchRow, figure: str) -> Cell | str:
    if figure not in row.series:
        return ""
    series = row.series[figure]
    return Cell(precise(series.median), note=f"± {short(series.std)}")


def _moved(row: BenchRow) -> str:
    share = row.shares.get("tg_tok_s")
    return f"{share.bytes_a_token / 1e6:.1f}" if share else ""


def _share(row: BenchRow, figure: str) -> Cell | str:
    share = row.shares.get(figure)
    if share is None or share.share is None:
        return ""
    return Cell(percent(share.share), bar=min(share.share, 1.0))


def _percentile(row: BenchRow, figure: str, rank: int) -> str:
    return precise(row.series[figure].percentile(rank)) if figure in row.series else ""


def _single_stream(rows: Iterable[BenchRow], figure: str) -> list[BenchRow]:
    return [row for row in rows if row.workload.concurrency == 1 and figure in row.series]


def _by_depth(rows: Sequence[BenchRow]) -> Chart | None:
    single = _single_stream(rows, "tg_tok_s")
    lines = []
    for pp, tg in sorted({(row.workload.pp, row.workload.tg) for row in single}):
        same = [row for row in single if (row.workload.pp, row.workload.tg) == (pp, tg)]
        lines.append(ChartLine(f"pp{pp} tg{tg}", _points(same, "tg_tok_s", lambda row: row.workload.depth)))
    return _chart_lines("Generation by depth", lines, "tokens before the prompt")


def _by_prompt(rows: Sequence[BenchRow]) -> Chart | None:
    single = _single_stream(rows, "pp_tok_s")
    lines = []
    for depth in sorted({row.workload.depth for row in single}):
        same = [row for row in single if row.workload.depth == depth]
        lines.append(ChartLine(f"depth {count(depth)}", _points(same, "pp_tok_s", lambda row: row.workload.pp)))
    return _chart_lines("Prompt speed by length", lines, "tokens of the prompt")


def _points(rows: Sequence[BenchRow], figure: str, position: Callable[[BenchRow], float]) -> list[ChartPoint]:
    points = {
        position(row): ChartPoint(
            position(row), row.series[figure].median, mean_interval(average_by_run(row, figure))
        )
        for row in rows
        if figure in row.series
    }
    return [points[x] for x in sorted(points)]


def _chart_lines(title: str, lines: Sequence[ChartLine], x_title: str) -> Chart | None:
    drawn = [line for line in lines if len(line.points) > 1]
    if not drawn:
        return None
    drawing = line_chart(drawn, x_title=x_title, y_title="tok/s", tick_format=count)
    return Chart(title, drawing, note="bars: 95 % intervals of the mean")


def _by_concurrency(rows: Sequence[BenchRow]) -> Chart | None:
    """Draws the speed of all streams together over the time of a request, with a point per number of streams."""
    first = next((row.workload for row in rows if row.workload.concurrency > 1), None)
    if first is None:
        return None
    wanted = (first.pp, first.tg, first.depth)
    same = [row for row in rows if (row.workload.pp, row.workload.tg, row.workload.depth) == wanted]
    same = sorted(
        (row for row in same if "tg_tok_s" in row.series and "e2e_ms" in row.series),
        key=lambda row: row.workload.concurrency,
    )
    if len(same) < 2:
        return None
    points = [
        ChartPoint(
            row.series["e2e_ms"].median,
            row.series["tg_tok_s"].median,
            mean_interval(average_by_run(row, "tg_tok_s")),
            f"{row.workload.concurrency}",
        )
        for row in same
    ]
    drawing = line_chart(
        [ChartLine(f"pp{first.pp} tg{first.tg}, number of streams at each point", points)],
        x_title="time of a whole request, p50 ms",
        y_title="tok/s of all streams",
        is_from_zero=True,
    )
    headings = ["streams", "tok/s of all", "tok/s of each", "request p50 ms"]
    cells = [
        [
            str(row.workload.concurrency),
            precise(row.series["tg_tok_s"].median),
            precise(row.series["tg_request_tok_s"].median) if "tg_request_tok_s" in row.series else "",
            precise(row.series["e2e_ms"].median),
        ]
        for row in same
    ]
    note = "up is more throughput, left is less waiting"
    return Chart("Throughput against latency", drawing, Table(headings, cells), note)


def _peers(bench: BenchResult, result: LabResult) -> list[Part]:
    """Compares the headline workload with other engines on the same model and GPU."""
    device, model = _find_device(bench, result), _find_model(bench, result)
    peers, headline = find_peers(model, device), find_headline(bench)
    if not peers or headline is None:
        return [Paragraph(f"No figures of other engines are known for {model or 'this model'} on {device}.")]
    name = (result.engine.name if result.engine else "") or "this server"
    entries = [(name, headline.series["tg_tok_s"].median, f"this run, {headline.name}")]
    entries += [(peer.engine, peer.tok_s, peer.source) for peer in peers]
    top = max(value for _, value, _ in entries)
    cells: list[list[Cell | str]] = [
        [engine, Cell(precise(value), bar=value / top), source] for engine, value, source in entries
    ]
    return [Table(["engine", "tok/s", "source"], cells, "one stream compared with other engines")]


def _find_device(bench: BenchResult, result: LabResult) -> str:
    around = result.surroundings
    return (bench.roof.device if bench.roof else "") or (around.device if around else "") or "this device"


def _find_model(bench: BenchResult, result: LabResult) -> str:
    return (result.engine.model if result.engine else "") or bench.model
