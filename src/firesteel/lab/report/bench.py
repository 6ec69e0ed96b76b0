"""The report's sections on a benchmark: speed, latency, memory and CPU; knows no format and measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from firesteel.lab.bench.peers import find_peers
from firesteel.lab.memory.gpu import WHOLE
from firesteel.lab.report.charts import Bar, Line, Strip, bar_chart, line_chart, short, strip_chart
from firesteel.lab.report.document import BAD, DOUBTFUL, PLAIN, Cell, Chart, Fold, Paragraph, Part, Raw, Table
from firesteel.lab.report.sections import GIB, memory_chart

Row = Mapping[str, Any]
Whole = Mapping[str, Any]
MOST_BARS = 36  # a chart says where it leaves some out
ABOVE = (
    "A share above 100 % means that fewer bytes were read than counted: requests of a crowd met the same experts "
    "more often than independent routing does, or the model or its formats are not the ones named."
)


def speed(bench: Mapping[str, Any], whole: Whole) -> list[Part]:
    rows = bench["rows"]
    plain = [row for row in rows if not row["workload"].get("is_cached")]
    parts: list[Part] = [Paragraph(_roof_in_words(bench))]
    if failures := sum(len(row.get("failures") or ()) for row in rows):
        parts.append(Paragraph(f"{failures} requests failed: their rows count the others only", BAD))
    parts.append(_speed_table(rows))
    shares = [one.get("share") or 0.0 for row in rows for one in (row.get("shares") or {}).values()]
    if max(shares, default=0.0) > 1:
        parts.append(Paragraph(ABOVE, DOUBTFUL))
    parts += [chart for chart in (*_bars(rows), _by_depth(plain), _by_prompt(plain), _by_crowd(plain)) if chart]
    parts += _against_peers(plain, bench, whole)
    parts += [Paragraph(f"left out: {line}") for line in bench.get("left_out") or ()]
    return [*parts, Fold("raw samples of every workload", [Raw(row["name"], row) for row in rows])]


def _roof_in_words(bench: Mapping[str, Any]) -> str:
    roof, plan = bench.get("roof"), bench.get("plan") or {}
    runs = f"{plan.get('runs', '?')} runs after {plan.get('warmups', 0)} to warm up; definitions of llama-benchy"
    if roof is None or not any(row.get("shares") for row in bench.get("rows") or ()):
        return f"{runs}; sizes or formats of the model are not known, so figures stand without bytes and shares"
    if roof.get("gb_s") is None:
        return f"{runs}; {roof['device']}: no roofline is known, so bytes are counted and no share is claimed"
    return f"{runs}; shares are of {roof['device']}'s {roof['gb_s']:.0f} GB/s ({roof['of']})"


def _speed_table(rows: Sequence[Row]) -> Table:
    """Columns of shares only where a roofline is known."""
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("workload", lambda row: str(row["name"])),
        ("pp tok/s", lambda row: _value(row, "pp_tok_s")),
        ("±", lambda row: _value(row, "pp_tok_s", "std")),
        ("of roof", lambda row: _share(row, "pp_tok_s")),
        ("tg tok/s", lambda row: _value(row, "tg_tok_s")),
        ("±", lambda row: _value(row, "tg_tok_s", "std")),
        ("MB a token", _moved),
        ("of roof", lambda row: _share(row, "tg_tok_s")),
        ("TTFT p50", lambda row: _value(row, "ttft_ms")),
        ("p99 ms", lambda row: _value(row, "ttft_ms", "p99")),
        ("TPOT p50", lambda row: _value(row, "tpot_ms")),
        ("p99 ms", lambda row: _value(row, "tpot_ms", "p99")),
    ]
    kept = [(name, show) for name, show in columns if any(show(row) for row in rows)]
    shown = [[show(row) for _, show in kept] for row in rows]
    return Table([name for name, _ in kept], shown, "medians; ± is the standard deviation of the runs")


def _moved(row: Row) -> str:
    share = (row.get("shares") or {}).get("tg_tok_s")
    return f"{share['bytes_a_token'] / 1e6:.1f}" if share else ""


def _share(row: Row, figure: str) -> str:
    found = ((row.get("shares") or {}).get(figure) or {}).get("share")
    return "" if found is None else f"{100 * found:.1f} %"


def _value(row: Row, figure: str, which: str = "p50") -> str:
    found = row["series"].get(figure)
    return "" if found is None else short(found[which])


def _bars(rows: Sequence[Row]) -> list[Chart]:
    charts = []
    for figure, title in (("tg_tok_s", "Generation"), ("pp_tok_s", "Prompts")):
        bars = [_bar(row, figure) for row in rows if figure in row["series"]][:MOST_BARS]
        if bars:
            is_known = any(bar.limit is not None for bar in bars)
            note = "red mark: the roofline" if is_known else ""
            note += _left_out(rows, figure)
            table = Table([title, "tok/s"], [[bar.name, bar.label] for bar in bars])
            charts.append(Chart(f"{title}, tokens a second", bar_chart(bars, unit="tok/s"), table, note))
    return charts


def _bar(row: Row, figure: str) -> Bar:
    value = row["series"][figure]["p50"]
    share = (row.get("shares") or {}).get(figure) or {}
    ceiling = share.get("ceiling_tok_s")
    label = short(value) if ceiling is None else f"{short(value)} of {short(ceiling)}"
    return Bar(row["name"], value, label, ceiling, 0 if figure == "tg_tok_s" else 2)


def _by_depth(rows: Sequence[Row]) -> Chart | None:
    alone = [row for row in rows if row["workload"]["concurrency"] == 1 and "tg_tok_s" in row["series"]]
    keys = sorted({(row["workload"]["pp"], row["workload"]["tg"]) for row in alone})
    lines = [
        Line(f"pp{pp} tg{tg}", _points(alone, "depth", "tg_tok_s", pp=pp, tg=tg)) for pp, tg in keys[:MOST_BARS]
    ]
    return _lines("Generation by depth", [one for one in lines if len(one.points) > 1], "tokens before the prompt")


def _by_prompt(rows: Sequence[Row]) -> Chart | None:
    alone = [row for row in rows if row["workload"]["concurrency"] == 1 and "pp_tok_s" in row["series"]]
    depths = sorted({row["workload"]["depth"] for row in alone})
    lines = [Line(f"depth {depth}", _points(alone, "pp", "pp_tok_s", depth=depth)) for depth in depths]
    return _lines("Prompt speed by length", [one for one in lines if len(one.points) > 1], "tokens of the prompt")


def _by_crowd(rows: Sequence[Row]) -> Chart | None:
    crowds = [row for row in rows if row["workload"]["concurrency"] > 1]
    if not crowds:
        return None
    like = {name: crowds[0]["workload"][name] for name in ("pp", "tg", "depth")}
    lines = [
        Line(name, _points(rows, "concurrency", figure, **like))
        for name, figure in (("all together", "tg_tok_s"), ("each stream", "tg_request_tok_s"))
    ]
    return _lines("Generation by streams", [one for one in lines if len(one.points) > 1], "streams at once")


def _points(rows: Sequence[Row], axis: str, figure: str, **fixed: Any) -> list[tuple[float, float]]:
    matching = [row for row in rows if all(row["workload"][name] == value for name, value in fixed.items())]
    return sorted(
        {row["workload"][axis]: row["series"][figure]["p50"] for row in matching if figure in row["series"]}.items()
    )


def _lines(title: str, lines: Sequence[Line], x_title: str) -> Chart | None:
    if not lines:
        return None
    rows = [[line.name, short(x), short(y)] for line in lines for x, y in line.points]
    table = Table(["line", x_title, "tok/s"], rows)
    return Chart(title, line_chart(lines, x_title=x_title, y_title="tok/s"), table)


def _against_peers(rows: Sequence[Row], bench: Mapping[str, Any], whole: Whole) -> list[Part]:
    device = (bench.get("roof") or {}).get("device") or (whole.get("surroundings") or {}).get("device") or ""
    engine = whole.get("engine") or {}
    model = str(engine.get("model") or bench.get("model") or "")
    peers = [*find_peers(model, device)]
    alone = [row for row in rows if row["workload"]["concurrency"] == 1 and "tg_tok_s" in row["series"]]
    given = whole.get("peers") or []
    if not (peers or given) or not alone:
        return [
            Paragraph(f"No figures of other engines are known for {model or 'this model'} on {device or 'it'}.")
        ]
    best = max(alone, key=lambda row: row["series"]["tg_tok_s"]["p50"])
    ours = best["series"]["tg_tok_s"]["p50"]
    name = str(engine.get("name") or "this server")
    entries = [(name, ours, best["name"]), *((one.engine, one.tok_s, one.source) for one in peers)]
    entries += [(str(one["engine"]), float(one["tok_s"]), str(one.get("source", ""))) for one in given]
    bars = [
        Bar(engine, value, short(value), colour=0 if number == 0 else 5)
        for number, (engine, value, _) in enumerate(entries)
    ]
    table = Table(
        ["engine", "tok/s", "source"], [[engine, short(value), source] for engine, value, source in entries]
    )
    return [Chart("One stream against other engines", bar_chart(bars, unit="tok/s"), table), table]


def _left_out(rows: Sequence[Row], figure: str) -> str:
    more = sum(figure in row["series"] for row in rows) - MOST_BARS
    return f"; {more} workloads more are among the raw samples" if more > 0 else ""


def latency(bench: Mapping[str, Any], whole: Whole) -> list[Part]:
    """Of every workload, every sample."""
    titles = {
        "ttft_ms": "Time to the first token", "itl_ms": "Between tokens", "tpot_ms": "Time a token",
        "e2e_ms": "Whole requests",
    }  # fmt: skip
    parts: list[Part] = []
    for figure, title in titles.items():
        rows = [row for row in bench["rows"] if figure in row["series"]][:MOST_BARS]
        if rows:
            strips = [_strip(row, figure) for row in rows]
            table = Table(
                [title, "p50 ms", "p90 ms", "p99 ms", "samples"],
                [[one.name, *(short(value) for _, value in one.marks), str(len(one.values))] for one in strips],
            )
            note = "each dot a sample" + _left_out(bench["rows"], figure)
            parts.append(Chart(title, strip_chart(strips, unit="ms"), table, note))
    return parts


def _strip(row: Row, figure: str) -> Strip:
    series = row["series"][figure]
    return Strip(row["name"], series["values"], [(name, series[name]) for name in ("p50", "p90", "p99")])


def resources(bench: Mapping[str, Any], whole: Whole) -> list[Part]:
    usage = bench.get("usage")
    facts = [["start-up", f"{bench['startup_s']:.1f} s"]] if bench.get("startup_s") is not None else []
    if usage is None:
        return [Table(["what", "value"], facts)] if facts else []
    facts += [["CPU cores kept busy", f"{usage['cores']:.2f}"]]
    facts += [["most memory of its processes", f"{usage['peak_memory_bytes'] / GIB:.2f} GiB"]]
    if usage.get("peak_gpu_bytes") is not None:
        whose = usage.get("gpu_scope") or WHOLE
        facts += [[f"most memory of the GPU, {whose}", f"{usage['peak_gpu_bytes'] / GIB:.2f} GiB"]]
    points = [(one[0], one[1] / GIB) for one in usage["memory"]]
    on_gpu = [(one[0], one[2] / GIB) for one in usage["memory"] if one[2] is not None]
    lines = [Line("server's processes", points), *([Line("GPU", on_gpu)] if on_gpu else [])]
    cells: list[list[Cell | str]] = [[Cell(name, PLAIN), value] for name, value in facts]
    return [Table(["during the benchmark", "value"], cells), *([memory_chart(lines)] if len(points) > 1 else [])]
