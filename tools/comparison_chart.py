"""Draws the README's comparison with other engines from the records: docs/images/comparison.svg."""

from __future__ import annotations

from typing import Any

import altair

from tables.peers import ENGINES, LLAMACPP, PLUGIN, read_speeds
from tables.records import ROOT

PICTURE = ROOT / "docs" / "images" / "comparison.svg"
COLOURS = ("#d9480f", "#f4a261", "#3b6ea5", "#7a9e7e", "#9a8fb0")
DECODE_PANELS = ((1, "1 request"), (8, "8 requests"), (32, "32 requests"))
PROMPT_PANELS = ((100, "prompt of 100 tokens"), (2048, "prompt of 2,048"), (8192, "prompt of 8,192"))
SHOWN = {PLUGIN: "vLLM + firesteel", LLAMACPP: "llama.cpp"}
PANEL = {"width": 170, "height": 110}


def draw() -> Any:
    """Returns two rows of bars: tokens per second while requests decode, and milliseconds to the first token."""
    speeds = read_speeds()
    decoding = [_panel(speeds[("requests", number)], title, "tok/s", ",.0f") for number, title in DECODE_PANELS]
    first = [_panel(speeds[("tokens", number)], title, "ms", ",.1f") for number, title in PROMPT_PANELS]
    rows = altair.vconcat(
        altair.hconcat(*decoding).properties(title="Decoding: tokens per second, longer is better"),
        altair.hconcat(*first).properties(title="First token: milliseconds, shorter is better"),
    )
    return (
        rows.properties(padding=14, background="white")
        .configure_view(strokeWidth=0)
        .configure_title(anchor="start", fontSize=13, font="sans-serif")
        .configure_axis(labelFont="sans-serif", titleFont="sans-serif", labelFontSize=11, grid=False)
    )


def _panel(row: dict[str, float], title: str, unit: str, shape: str) -> Any:
    """Returns bars of one measurement, an engine each; an engine that was not measured says so."""
    values = [
        {
            "engine": SHOWN.get(engine, engine),
            "value": row.get(engine, 0.0),
            "label": format(row[engine], shape) if engine in row else "not measured",
        }
        for engine in ENGINES
    ]
    order = [value["engine"] for value in values]
    largest = max(row.values())
    bars = (
        altair.Chart(altair.Data(values=values))  # type: ignore[no-untyped-call]
        .mark_bar(height=14)
        .encode(
            x=altair.X("value:Q", axis=None, scale=altair.Scale(domain=[0, 1.35 * largest])),
            y=altair.Y(
                "engine:N", sort=order, title=None, axis=altair.Axis(ticks=False, domain=False, labelLimit=140)
            ),
            color=altair.Color(
                "engine:N", sort=order, legend=None, scale=altair.Scale(domain=order, range=COLOURS)
            ),
        )
    )
    labels = bars.mark_text(align="left", dx=4, fontSize=11, font="sans-serif").encode(
        text="label:N", color=altair.value("#333333")
    )
    return (bars + labels).properties(
        title=altair.Title(f"{title}, {unit}", fontSize=11, fontWeight="normal"), **PANEL
    )


def write_chart() -> None:
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    draw().save(str(PICTURE))


if __name__ == "__main__":
    write_chart()
