"""The top of a report: key figures with intervals and their change, and a badge per slot."""

from __future__ import annotations

from dataclasses import replace

from firesteel.lab.bench.result import BenchResult
from firesteel.lab.compare.compare import FASTER, SLOWER, Change
from firesteel.lab.compare.interval import mean_interval
from firesteel.lab.compare.key_figures import TTFT, KeyFigure, compare_key_figures, pick_key_figures
from firesteel.lab.history import list_comparable
from firesteel.lab.report.document import BAD, GOOD, PLAIN, Badge, Cell, Highlight
from firesteel.lab.report.headline import VERDICT_TONES
from firesteel.lab.report.number_format import interval, percent, precise, signed_percent
from firesteel.lab.result import LabResult

GIB = 1 << 30
DATE = len("2026-11-18")
DOES_NOT_COUNT = Cell("does not count", BAD)
CHANGE_TONES = {SLOWER: BAD, FASTER: GOOD}


def make_highlights(result: LabResult) -> list[Highlight]:
    """Returns the speeds of prompt and generation, the time to the first token, and the share of the roofline."""
    bench = result.any_bench
    if bench is None or result.review is not None:
        return []
    figures = pick_key_figures(bench)
    earlier = list_comparable(result)
    changes = compare_key_figures(earlier[-1].figures, figures) if earlier else {}
    since = "" if not earlier else f"since {describe_time(earlier[-1].time_utc)[:DATE]}"
    remarks = {name: describe_change(change, since) for name, change in changes.items()}
    is_invalid = bool(result.levels) and not result.has_counted_bench
    if is_invalid:
        remarks = {figure.name: DOES_NOT_COUNT for figure in figures}
    shown = [_highlight(figure, remarks.get(figure.name)) for figure in figures]
    fourth = _make_fourth(bench, figures)
    return [*shown, *(replace(figure, remark=DOES_NOT_COUNT if is_invalid else None) for figure in fourth)]


def _highlight(figure: KeyFigure, remark: Cell | None) -> Highlight:
    samples = figure.samples
    name = f"{TTFT}, pp{figure.row.workload.pp}" if figure.name == TTFT else figure.name
    depth = figure.row.workload.depth
    return Highlight(
        name=name + (f" @ d{depth}" if depth else ""),
        value=precise(samples.median),
        unit=samples.unit,
        interval=_describe_interval(samples.runs),
        note=f"{len(samples.runs)} runs of {figure.row.name}",
        remark=remark,
    )


def _describe_interval(runs: tuple[float, ...]) -> str:
    ends = mean_interval(runs)
    return "a single run has no interval" if ends is None else f"95 %: {interval(*ends)}"


def describe_change(change: Change, since: str) -> Cell:
    """Writes a change with its interval; a smaller time is better."""
    arrow = "▲" if change.change > 0 else "▼"
    return Cell(
        f"{arrow} {signed_percent(change.change)}, {change.verdict}\n{since}",
        CHANGE_TONES.get(change.verdict, PLAIN),
    )


def _make_fourth(bench: BenchResult, figures: list[KeyFigure]) -> list[Highlight]:
    """Returns the share of the roofline; without one the bandwidth, and without formats the peak memory."""
    speed = next((figure for figure in figures if figure.figure == "tg_tok_s"), None)
    share = None if speed is None else speed.row.shares.get("tg_tok_s")
    if speed is None or share is None:
        return _peak_memory(bench)
    ends = mean_interval(speed.samples.runs)
    median = speed.samples.median
    if share.share is not None and share.ceiling_tok_s:
        reach = "" if ends is None else f"95 %: {' to '.join(percent(end / share.ceiling_tok_s) for end in ends)}"
        note = f"{speed.name} of {precise(share.ceiling_tok_s)} tok/s, {share.of}"
        value = f"{100 * median / share.ceiling_tok_s:.1f}"
        return [Highlight(name="Share of the roofline", value=value, unit="%", interval=reach, note=note)]
    gb = share.bytes_a_token / 1e9
    return [
        Highlight(
            name=f"Bandwidth, {speed.name}",
            value=precise(gb * median),
            unit="GB/s",
            interval="" if ends is None else f"95 %: {interval(gb * ends[0], gb * ends[1])}",
            note=f"no roofline is known for {share.device}",
        )
    ]


def _peak_memory(bench: BenchResult) -> list[Highlight]:
    if bench.usage is None:
        return []
    on_gpu = bench.usage.peak_gpu_bytes
    where = "the server's processes" if on_gpu is None else "GPU"
    value = precise((on_gpu or bench.usage.peak_memory_bytes) / GIB)
    note = "no share of the roofline: sizes or formats are unknown"
    return [Highlight(name=f"Peak memory, {where}", value=value, unit="GiB", note=note)]


def make_badges(result: LabResult) -> list[Badge]:
    table = result.any_slots
    if table is None:
        return []
    return [
        Badge(row.slot, row.value, row.state.value, VERDICT_TONES[row.verdict] if row.counts else PLAIN)
        for row in table.rows
    ]


def describe_time(time_utc: str | None) -> str:
    """Returns "2026-11-18 19:36 UTC"."""
    return "unknown time" if not time_utc else time_utc.replace("T", " ")[:16] + " UTC"
