"""Writes a roofline as a page: time per op, larger batches, drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firesteel.lab.report.charts import line_chart, line_of, stacked_chart
from firesteel.lab.report.document import DOUBTFUL, GOOD, Chart, Document, Paragraph, Part, Section, Table
from firesteel.lab.report.html import to_html
from firesteel.measure.roofline.curves import BatchPoint, DraftPoint
from firesteel.measure.roofline.roofline import NOT_RUN, Prediction, StepCost

SMALLEST = 0.01  # share of a step below which an op is added to the rest


def write_page(
    path: Path,
    title: str,
    cost: StepCost,
    predictions: Sequence[Prediction],
    assumed: Sequence[str],
    batches: Sequence[BatchPoint],
    drafts: Sequence[DraftPoint],
) -> Path:
    last = predictions[-1]
    words = f"{last.predicted_tok_s:.1f} tok/s predicted, at {100 * last.share:.0f} % of a ceiling of "
    document = Document(
        title=f"Roofline: {title}",
        verdict=f"{words}{last.ceiling_tok_s:.1f} tok/s",
        tone=DOUBTFUL if last.status == NOT_RUN else GOOD,
        lines=[last.status, *(f"assumed: {assumption}" for assumption in assumed)],
        sections=[
            Section("Where the time goes", [_pieces(cost, last.gb_s), _ops(cost, last.gb_s)]),
            Section("Requests decoded together", _batch_parts(batches)),
            *([Section("Speculation", _draft_parts(drafts))] if drafts else []),
        ],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_html(document), encoding="utf-8")
    return path


def _pieces(cost: StepCost, gb_s: float) -> Chart:
    """Draws the largest ops first; those below a percent are added up."""
    times = [(f"{op.op} {op.part}".removesuffix(" all"), op.bytes / gb_s / 1e3) for op in cost.ops]
    total = sum(value for _, value in times)
    large = sorted((piece for piece in times if piece[1] >= SMALLEST * total), key=lambda piece: -piece[1])
    rest = total - sum(value for _, value in large)
    pieces = [*large, ("the rest", rest)] if rest > 0 else large
    note = f"one step of {total:.0f} us at {gb_s:.0f} GB/s, memory reads only"
    return Chart("One step by op", stacked_chart(pieces, unit="us"), None, note)


def _ops(cost: StepCost, gb_s: float) -> Table:
    rows = [
        [
            op.op,
            op.part,
            str(op.calls),
            f"{op.bytes / 1e6:.1f}",
            f"{100 * op.bytes / cost.bytes:.1f} %",
            f"{op.bytes / gb_s / 1e3:.1f}",
        ]
        for op in cost.ops
    ]
    return Table(["op", "part", "calls", "MB", "share", "us"], rows, f"{cost.bytes / 1e9:.2f} GB in total")


def _batch_parts(points: Sequence[BatchPoint]) -> list[Part]:
    together = [(point.requests, point.ceiling_tok_s) for point in points]
    alone = [(point.requests, point.request_tok_s) for point in points]
    experts = [(point.requests, point.distinct_experts) for point in points]
    moved = [(point.requests, point.bytes_a_token / 1e9) for point in points]
    return [
        Chart(
            "Ceiling",
            line_chart(
                [line_of("all requests", together), line_of("each request", alone)],
                x_title="requests",
                y_title="tok/s",
            ),
        ),
        Chart(
            "Distinct experts per layer",
            line_chart([line_of("experts", experts)], x_title="requests", y_title=""),
        ),
        Chart("Bytes per token", line_chart([line_of("GB per token", moved)], x_title="requests", y_title="GB")),
        Paragraph("Memory only: if arithmetic is slower than reading, the true ceiling is lower."),
    ]


def _draft_parts(points: Sequence[DraftPoint]) -> list[Part]:
    cost = line_of("cost", [(point.drafted, point.cost) for point in points])
    lengths = [(point.drafted, point.length) for point in points if point.length is not None]
    most = line_of("maximum gain", [(point.drafted, point.drafted + 1.0) for point in points], is_dashed=True)
    lines = [cost, *([line_of("gain at the given acceptance", lengths)] if lengths else []), most]
    even = [(point.drafted, 100 * point.break_even_acceptance) for point in points if point.break_even_acceptance]
    charts: list[Part] = [
        Chart(
            "A verification step",
            line_chart(lines, x_title="drafted tokens", y_title="plain steps, tokens per step"),
            note="speculation pays if the gain exceeds the cost",
        ),
    ]
    if even:
        drawing = line_chart([line_of("break-even", even)], x_title="drafted tokens", y_title="acceptance, %")
        charts.append(Chart("Acceptance from which speculation pays", drawing))
    return charts
