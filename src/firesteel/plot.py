"""Draws measured ops and steps as a page without network requests, and as a picture.

altair and vl-convert are imported when something is drawn, so that machines that only measure do not need them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.measure.decode.figures import DecodeFigures
from firesteel.measure.loop.figures import LoopFigures
from firesteel.measure.ops.outcome import OpOutcome

LIBRARIES = {"altair": "altair", "vl_convert": "vl-convert-python"}  # module -> package
PANELS_PER_ROW = 3
Decoded = Sequence[DecodeFigures] | Sequence[LoopFigures]  # steps alone, or steps of the engine
PANEL = {"width": 260, "height": 170}


class PlotError(UserError):
    """A plot that cannot be drawn."""


def check_libraries() -> None:
    """Raises if a library is missing."""
    missing = [package for module, package in LIBRARIES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise PlotError(f"plots need {' and '.join(missing)}: pip install {' '.join(missing)}, or pass --no-plot")


def plot_ops(outcomes: Sequence[OpOutcome], folder: Path, title: str) -> list[Path]:
    """Writes ops.html and ops.png: a panel per op and part, a line per implementation, share of ceiling over M."""
    check_libraries()
    return _save(draw_ops(outcomes, title), folder, "ops")


def plot_decode(figures: Decoded, folder: Path, title: str, *, stem: str = "decode") -> list[Path]:
    """Writes decode.html and decode.png: a colour per batch, tokens per second over context, the floor dashed."""
    check_libraries()
    return _save(draw_decode(figures, title), folder, stem)


def _save(chart: Any, folder: Path, name: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    page, picture = folder / f"{name}.html", folder / f"{name}.png"
    chart.save(str(page), inline=True)
    chart.save(str(picture), ppi=120)
    return [page, picture]


def draw_decode(figures: Decoded, title: str) -> Any:
    import altair

    rows = [row for point in figures for row in _decode_rows(point)]
    first = figures[0]
    return (
        altair.Chart(altair.Data(values=rows))  # type: ignore[no-untyped-call]
        .mark_line(point=True)
        .encode(
            x=altair.X("context:O", title="context (tokens)", axis=altair.Axis(labelAngle=0)),
            y=altair.Y("tok/s:Q", title="tokens per second, all requests").scale(zero=True),
            color=altair.Color("batch:N", title="batch"),
            strokeDash=altair.StrokeDash("line:N", title=None, legend=None, sort=["measured", "floor"]),
            tooltip=[
                "batch:N",
                "context:O",
                "line:N",
                "tok/s:Q",
                "ms per step:Q",
                "MB per token:Q",
                "of the floor:N",
            ],
        )
        .properties(
            width=420,
            height=300,
            title=altair.TitleParams(
                title, subtitle=f"{first.way}; dashed: floor at {first.read_gb_s:.0f} GB/s, read in the same run"
            ),
        )
    )


def _decode_rows(point: DecodeFigures | LoopFigures) -> list[dict[str, Any]]:
    shared = {
        "batch": point.batch,
        "context": point.context,
        "MB per token": round(point.token_bytes / 1e6, 1),
        "of the floor": f"{100 * point.share:.1f} %",
    }
    return [
        {**shared, "line": "measured", "tok/s": round(point.tok_s, 1), "ms per step": round(point.step_ms, 3)},
        {**shared, "line": "floor", "tok/s": round(point.floor_tok_s, 1), "ms per step": round(point.floor_ms, 3)},
    ]


def draw_ops(outcomes: Sequence[OpOutcome], title: str) -> Any:
    import altair

    rows = [_row(outcome) for outcome in outcomes if outcome.figures is not None]
    if not rows:
        raise PlotError("nothing was measured, so there is nothing to draw")
    tokens = sorted({row["M"] for row in rows})
    share = altair.Tooltip("share:Q", format=".1%")
    lines = (
        altair.Chart(altair.Data(values=rows))  # type: ignore[no-untyped-call]
        .mark_line(point=True)
        .encode(
            x=altair.X(
                "M:Q",
                scale=altair.Scale(type="log", base=2, nice=False, domain=[tokens[0], max(tokens[-1], 2)]),
                axis=altair.Axis(values=tokens, labelOverlap=True, format="d"),
                title="M (tokens)",
            ),
            y=altair.Y("share:Q", title="share of the ceiling", axis=altair.Axis(format=".0%")).scale(zero=True),
            color=altair.Color("line:N", title="implementation"),
            tooltip=["M:Q", "line:N", "us:Q", "GB/s:Q", "TFLOP/s:Q", "bound:N", share],
        )
        .properties(**PANEL)
    )
    facet = altair.Facet("panel:N", title=None, sort=_in_order(rows))
    return (
        lines.facet(facet=facet, columns=PANELS_PER_ROW)
        .resolve_axis(x="independent")
        .properties(title=altair.TitleParams(title, subtitle=_ceilings(outcomes)))
    )


def _row(outcome: OpOutcome) -> dict[str, Any]:
    figures = outcome.figures
    assert figures is not None
    activation = "" if outcome.activation in ("", "bf16") else outcome.activation
    return {
        "panel": " ".join(filter(None, (outcome.op, outcome.part))),
        "line": " ".join(filter(None, (outcome.implementation, activation))),
        "M": outcome.m,
        "share": figures.share,
        "bound": figures.bound,
        "us": round(figures.median_s * 1e6, 2),
        "GB/s": round(figures.gb_s, 1),
        "TFLOP/s": round(figures.tflop_s, 3),
    }


def _in_order(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["panel"] for row in rows))


def _ceilings(outcomes: Sequence[OpOutcome]) -> str:
    figures = next(outcome.figures for outcome in outcomes if outcome.figures is not None)
    return (
        f"ceilings of the same run: read {figures.read_gb_s:.0f} GB/s, matrix {figures.matrix_tflop_s:.1f} TFLOP/s"
    )
