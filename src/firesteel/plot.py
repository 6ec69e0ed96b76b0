"""Draws measured ops as a page that needs no network, and as a picture; measures nothing.

altair and vl-convert are imported when something is drawn: machines that only measure do without them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.measure.outcome import Outcome

LIBRARIES = {"altair": "altair", "vl_convert": "vl-convert-python"}  # module -> package
PANELS_A_ROW = 3
PANEL = {"width": 260, "height": 170}


class PlotError(UserError):
    """A plot was asked for that cannot be drawn here."""


def check_libraries() -> None:
    """Raises unless plots can be drawn here."""
    missing = [package for module, package in LIBRARIES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise PlotError(f"plots need {' and '.join(missing)}: pip install {' '.join(missing)}, or pass --no-plot")


def plot_ops(outcomes: Sequence[Outcome], folder: Path, title: str) -> list[Path]:
    """ops.html and ops.png: a panel an op and part, a line an implementation, M against share of the ceiling."""
    check_libraries()
    folder.mkdir(parents=True, exist_ok=True)
    chart = draw_ops(outcomes, title)
    page, picture = folder / "ops.html", folder / "ops.png"
    chart.save(str(page), inline=True)
    chart.save(str(picture), ppi=120)
    return [page, picture]


def draw_ops(outcomes: Sequence[Outcome], title: str) -> Any:
    import altair

    rows = [_row(one) for one in outcomes if one.figures is not None]
    if not rows:
        raise PlotError("nothing was measured, so there is nothing to draw")
    tokens = sorted({row["M"] for row in rows})
    share = altair.Tooltip("share:Q", format=".1%")
    lines = (
        altair.Chart(altair.Data(values=rows))  # type: ignore[no-untyped-call]
        .mark_line(point=True)
        .encode(
            x=altair.X(
                "M:Q", scale=altair.Scale(type="log", base=2, nice=False, domain=[tokens[0], max(tokens[-1], 2)]),
                axis=altair.Axis(values=tokens, labelOverlap=True, format="d"), title="M (tokens)",
            ),
            y=altair.Y("share:Q", title="share of the ceiling", axis=altair.Axis(format=".0%")).scale(zero=True),
            color=altair.Color("line:N", title="implementation"),
            tooltip=["M:Q", "line:N", "us:Q", "GB/s:Q", "TFLOP/s:Q", "bound:N", share],
        )
        .properties(**PANEL)
    )  # fmt: skip
    facet = altair.Facet("panel:N", title=None, sort=_in_order(rows))
    return (
        lines.facet(facet=facet, columns=PANELS_A_ROW)
        .resolve_axis(x="independent")
        .properties(title=altair.TitleParams(title, subtitle=_ceilings(outcomes)))
    )


def _row(outcome: Outcome) -> dict[str, Any]:
    figures = outcome.figures
    assert figures is not None
    activation = "" if outcome.activation in ("", "bf16") else outcome.activation
    return {
        "panel": " ".join(filter(None, (outcome.op, outcome.part))),
        "line": " ".join(filter(None, (outcome.implementation, activation))),
        "M": outcome.m, "share": figures.share, "bound": figures.bound, "us": round(figures.median_s * 1e6, 2),
        "GB/s": round(figures.gb_s, 1), "TFLOP/s": round(figures.tflop_s, 3),
    }  # fmt: skip


def _in_order(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["panel"] for row in rows))


def _ceilings(outcomes: Sequence[Outcome]) -> str:
    figures = next(one.figures for one in outcomes if one.figures is not None)
    return (
        f"ceilings of the same run: read {figures.read_gb_s:.0f} GB/s, matrix {figures.matrix_tflop_s:.1f} TFLOP/s"
    )
