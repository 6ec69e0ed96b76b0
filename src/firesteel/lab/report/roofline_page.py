"""A roofline as a page: where the time goes, larger batches, drafted tokens; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firesteel.lab.report.charts import Line, line_chart, stacked_chart
from firesteel.lab.report.document import DOUBTFUL, GOOD, Chart, Document, Paragraph, Part, Section, Table
from firesteel.lab.report.html import to_html
from firesteel.measure.roofline.curves import BatchPoint, DraftPoint
from firesteel.measure.roofline.roofline import NOT_RUN, Prediction, StepCost

SMALLEST = 0.01  # share of a step below which an op is counted among the rest


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
        title=f"Roofline: {title}", verdict=f"{words}{last.ceiling_tok_s:.1f} tok/s",
        tone=DOUBTFUL if last.status == NOT_RUN else GOOD, lines=[last.status, *(f"assumed: {a}" for a in assumed)],
        sections=[
            Section("Where the time goes", [_pieces(cost, last.gb_s), _ops(cost, last.gb_s)]),
            Section("Requests decoded together", _batch_parts(batches)),
            *([Section("Speculation", _draft_parts(drafts))] if drafts else []),
        ],
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_html(document), encoding="utf-8")
    return path


def _pieces(cost: StepCost, gb_s: float) -> Chart:
    """The largest first; what is below a percent stands together."""
    times = [(f"{op.op} {op.part}".removesuffix(" all"), op.bytes / gb_s / 1e3) for op in cost.ops]
    total = sum(value for _, value in times)
    large = sorted((one for one in times if one[1] >= SMALLEST * total), key=lambda one: -one[1])
    rest = total - sum(value for _, value in large)
    pieces = [*large, ("the rest", rest)] if rest > 0 else large
    note = f"one step of {total:.0f} us at {gb_s:.0f} GB/s, nothing but reading"
    return Chart("One step by op", stacked_chart(pieces, unit="us"), None, note)


def _ops(cost: StepCost, gb_s: float) -> Table:
    rows = [
        [op.op, op.part, str(op.calls), f"{op.bytes / 1e6:.1f}", f"{100 * op.bytes / cost.bytes:.1f} %",
         f"{op.bytes / gb_s / 1e3:.1f}"]
        for op in cost.ops
    ]  # fmt: skip
    return Table(["op", "part", "calls", "MB", "share", "us"], rows, f"{cost.bytes / 1e9:.2f} GB in all")


def _batch_parts(points: Sequence[BatchPoint]) -> list[Part]:
    together = [(point.requests, point.ceiling_tok_s) for point in points]
    alone = [(point.requests, point.request_tok_s) for point in points]
    experts = [(point.requests, point.distinct_experts) for point in points]
    moved = [(point.requests, point.bytes_a_token / 1e9) for point in points]
    return [
        Chart("Ceiling", line_chart([Line("all requests", together), Line("each request", alone)],
                                    x_title="requests", y_title="tok/s")),
        Chart("Experts met in a layer", line_chart([Line("experts", experts)], x_title="requests", y_title="")),
        Chart("Bytes a token", line_chart([Line("GB a token", moved)], x_title="requests", y_title="GB")),
        Paragraph("Memory only: where arithmetic is slower than reading, the true ceiling lies lower."),
    ]  # fmt: skip


def _draft_parts(points: Sequence[DraftPoint]) -> list[Part]:
    cost = Line("costs", [(point.drafted, point.cost) for point in points])
    lengths = [(point.drafted, point.length) for point in points if point.length is not None]
    most = Line("gains at best", [(point.drafted, point.drafted + 1.0) for point in points], is_dashed=True)
    lines = [cost, *([Line("gains at the acceptance given", lengths)] if lengths else []), most]
    even = [(point.drafted, 100 * point.break_even_acceptance) for point in points if point.break_even_acceptance]
    charts: list[Part] = [
        Chart("A verifying step", line_chart(lines, x_title="drafted tokens", y_title="plain steps, tokens a step"),
              note="it pays where the gain lies above the cost"),
    ]  # fmt: skip
    if even:
        drawing = line_chart([Line("break-even", even)], x_title="drafted tokens", y_title="acceptance, %")
        charts.append(Chart("Acceptance from which it pays", drawing))
    return charts
