"""Sections of a report: levels, kernels, memory, comparison, review, environment and raw data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firesteel.lab.codec import to_json
from firesteel.lab.compare.compare import FASTER, LESS_MEMORY, MORE_MEMORY, SLOWER, limit
from firesteel.lab.level_result import LevelResult
from firesteel.lab.path.ledger import NONE, OpCalls
from firesteel.lab.report.charts import ChartLine, line_chart, short
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, PLAIN, Cell, Chart, Fold, Paragraph, Part, Raw, Table
from firesteel.lab.report.headline import REVIEW_TONES, VERDICT_TONES
from firesteel.lab.result import LabResult
from firesteel.lab.verdict import Verdict

Rows = list[list[Cell | str]]
GIB = 1 << 30
MET = {True: Cell("yes", GOOD), False: Cell("no", BAD), None: Cell("unclear", DOUBTFUL)}
PROOF_TONES = {"native-fp4": GOOD, "fp8": GOOD, "int8": GOOD, NONE: PLAIN}  # others are doubtful
CHANGE_TONES = {SLOWER: BAD, MORE_MEMORY: BAD, FASTER: GOOD, LESS_MEMORY: GOOD}


def levels(result: LabResult) -> list[Part]:
    if not result.levels:
        return []
    rows: Rows = [
        [_title(level), _level_verdict(level), level.reason, f"{level.seconds:.1f}"] for level in result.levels
    ]
    folds = [Fold(f"level {level.level}: {level.level.title}", _level(level)) for level in result.levels]
    return [Table(["level", "verdict", "why", "s"], rows), *folds]


def _title(level: LevelResult) -> str:
    return f"{level.level} {level.level.title}"


def _level(level: LevelResult) -> list[Part]:
    """Shows the checks of a level, and its figures."""
    rows: Rows = [[row.check, _verdict_cell(row.verdict), row.words, row.cure] for row in level.checks]
    figures = {name: value for name, value in level.figures().items() if name != "checks"}
    parts: list[Part] = [Table(["check", "verdict", "found", "cure"], rows)] if rows else []
    return [*parts, Raw("figures", figures)] if figures else parts


def _level_verdict(level: LevelResult) -> Cell:
    return Cell("does not count", BAD) if level.passed and not level.valid else _verdict_cell(level.verdict)


def _verdict_cell(verdict: Verdict) -> Cell:
    return Cell(verdict.words, VERDICT_TONES[verdict])


def kernels(result: LabResult) -> list[Part]:
    """Shows what ran with the proof of its machine code; times are known on a CPU only."""
    ran = result.any_kernels
    if not ran:
        return []
    is_timed = any(calls.seconds for calls in ran)
    headings = ["op", "implementation", "activations", "calls"]
    headings += [*["us per call"] * is_timed, "proof", "launched"]
    rows = [_kernel_row(calls, is_timed=is_timed) for calls in ran]
    caption = "from the ledger: what was called, not what was planned"
    return [Table(headings, rows, caption), Raw("ledger", to_json(ran))]


def _kernel_row(calls: OpCalls, *, is_timed: bool) -> list[Cell | str]:
    us = f"{1e6 * calls.seconds / calls.calls:.0f}" if calls.calls and calls.seconds else ""
    launches = ", ".join(f"{count} x {name}" for name, count in calls.launches.items())
    return [
        calls.op,
        calls.implementation,
        calls.activation,
        "" if calls.calls is None else str(calls.calls),
        *[us] * is_timed,
        _proof(calls),
        launches or "no kernel of its own",
    ]


def _proof(calls: OpCalls) -> Cell:
    """Shows the matrix instructions in the machine code that ran.

    Rounded activations that were multiplied as bf16 are doubtful: a fallback on a GPU that can do otherwise.
    """
    verdicts = {code.verdict or "not read yet" for code in calls.artefacts}
    shown = sorted(verdicts - {NONE}) or sorted(verdicts)
    is_rounded = calls.activation in ("mxfp8", "mxfp4")
    tones = {PROOF_TONES.get(verdict, DOUBTFUL) if verdict != "bf16" or is_rounded else PLAIN for verdict in shown}
    tone = next((tone for tone in (DOUBTFUL, GOOD) if tone in tones), PLAIN)
    return Cell(", ".join(shown) or "-", tone)


def memory(result: LabResult) -> list[Part]:
    timeline = result.memory
    if timeline is None:
        return []
    columns = {"server's processes": timeline.host_bytes, "GPU": timeline.gpu_bytes}
    lines = []
    for name, values in columns.items():
        pairs = zip(timeline.seconds, values, strict=False)
        points = [(at, used / GIB) for at, used in pairs if used is not None]
        lines += [ChartLine(name, points)] if len(points) > 1 else []
    return [memory_chart(lines), Raw("samples", to_json(timeline))] if lines else []


def memory_chart(lines: Sequence[ChartLine]) -> Chart:
    last = max(line.points[-1][0] for line in lines) or 1.0
    ticks = [round(last * part / 4, 1 if last < 40 else 0) for part in range(5)]
    rows = [
        [
            line.name,
            f"{line.points[0][1]:.2f}",
            f"{max(y for _, y in line.points):.2f}",
            f"{line.points[-1][1]:.2f}",
        ]
        for line in lines
    ]
    svg = line_chart(lines, x_title="seconds", y_title="GiB", ticks=ticks)
    return Chart("Memory over time", svg, Table(["memory (GiB)", "first", "peak", "last"], rows))


def review(result: LabResult) -> list[Part]:
    """Shows hypothesis, criteria, result and verdict."""
    sheet = result.review
    if sheet is None:
        return []
    rows: Rows = [[row.criterion, row.wanted, row.found, MET[row.met]] for row in sheet.criteria]
    sides = f"{sheet.gate}={sheet.off} compared with {sheet.gate}={sheet.on}, {sheet.rounds} rounds each"
    return [
        Paragraph(f"Hypothesis: {sheet.hypothesis}"),
        Table(["criterion", "wanted", "result", "met"], rows, sides),
        Paragraph(f"Verdict: {sheet.verdict}. {sheet.why}", REVIEW_TONES.get(sheet.verdict, DOUBTFUL)),
    ]


def comparison(result: LabResult) -> list[Part]:
    compared = result.any_comparison
    if compared is None:
        return []
    rows: Rows = [
        [
            row.name,
            row.figure,
            f"{100 * row.change:+.1f} %",
            Cell(row.verdict, CHANGE_TONES.get(row.verdict, PLAIN)),
            short(row.before),
            short(row.after),
            row.unit,
            f"{100 * limit(row.low):+.1f} to {100 * limit(row.high):+.1f} %",
        ]
        for row in compared.rows
    ]
    headings = ["workload", "figure", "change", "verdict", "before", "after", "unit", "interval of the change"]
    is_clear = not compared.is_unclear or compared.regressions
    tone = VERDICT_TONES[compared.verdict] if is_clear else DOUBTFUL
    note = "in 95 % of such tables every true change is within its interval"
    table = Table(headings, rows, note)
    return [Paragraph(compared.in_words(), tone), table, Raw("comparison", compared.as_dict())]


def environment(result: LabResult) -> list[Part]:
    around = result.surroundings
    if around is None:
        return []
    content = around.as_dict()
    rows: list[tuple[str, Any]] = [
        *((name, content[name]) for name in ("device", "capability", "time_utc", "commit", "is_dirty")),
        *((f"version of {name}", version) for name, version in around.versions.items()),
        ("command", " ".join(around.command)),
        *content["gpu"].items(),
        *(around.environment or {}).items(),
    ]
    known = [[name, str(value)] for name, value in rows if value not in (None, "", {}, [])]
    return [Table(["name", "value"], known), Raw("environment", content)]


def raw(result: LabResult) -> list[Part]:
    return [Raw(name, value) for name, value in result.as_dict().items()]
