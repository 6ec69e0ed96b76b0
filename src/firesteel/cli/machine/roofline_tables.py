"""Tables of `roofline` about formats, batches, drafts and other engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from firesteel.cli.tables import new_table
from firesteel.lab.bench.peers import Peer
from firesteel.measure.roofline import curves, roofline
from firesteel.model.spec import ModelSpec

HELD = {"bf16": "as published", "mxfp4": "--mxfp4-layers qkv,o,lm_head"}  # formats of dense layers that it computes


def dense_table(formats: Mapping[str, roofline.StepCost], gb_s: float) -> Table:
    """Builds the table of ceilings with qkv, o and lm_head in each format."""
    table = new_table("qkv, o, lm_head", "MB per step", "ceiling tok/s", "in firesteel")
    table.title = f"formats of the dense layers, at {gb_s:.0f} GB/s"
    for name, cost in formats.items():
        table.add_row(name, f"{cost.bytes / 1e6:.0f}", f"{cost.tok_s(gb_s):.1f}", HELD.get(name, "no"))
    return table


def batch_table(points: Sequence[curves.BatchPoint], spec: ModelSpec, overlap: float, gb_s: float) -> Table:
    table = new_table("requests", "distinct experts", "MB per token", "FLOP/byte", "ceiling tok/s", "per request")
    table.title = f"requests decoded together, at {gb_s:.0f} GB/s"
    table.caption = f"experts of {spec.num_experts} in each layer; {_overlap_in_words(overlap)}"
    for point in points:
        table.add_row(
            str(point.requests),
            f"{point.distinct_experts:.1f}",
            f"{point.bytes_a_token / 1e6:.0f}",
            f"{point.flops_a_byte:.1f}",
            f"{point.ceiling_tok_s:.0f}",
            f"{point.request_tok_s:.1f}",
        )
    return table


def draft_table(points: Sequence[curves.DraftPoint], acceptance: float | None, overlap: float) -> Table:
    table = new_table(
        "drafted",
        "distinct experts",
        "cost (plain steps)",
        "break-even acceptance",
        "tokens per step",
        "speed-up",
    )
    table.title = "speculation, compared with decoding token by token"
    best = curves.best_draft(points)
    asked = (
        ""
        if acceptance is None
        else f"; acceptance {acceptance:g}: "
        + ("no number of drafts gains" if best is None else f"{best.drafted} drafted tokens gain most")
    )
    table.caption = f"{_overlap_in_words(overlap)}{asked}"
    for point in points:
        even = "never" if point.break_even_acceptance is None else f"{point.break_even_acceptance:.1%}"
        length, speedup = ("" if value is None else f"{value:.2f}" for value in (point.length, point.speedup))
        colour = "" if point.speedup is None else "green" if point.speedup > 1 else "red"
        table.add_row(
            str(point.drafted),
            f"{point.distinct_experts:.1f}",
            f"{point.cost:.2f}",
            even,
            length,
            Text(speedup, colour),
        )
    return table


def peer_table(peers: Sequence[Peer], spec: ModelSpec, gb_s: float) -> Table:
    """Builds the table of other engines: their speed, and the bandwidth that it takes in their formats."""
    table = new_table("engine", "dense", "tok/s", "GB/s", f"of {gb_s:.0f} GB/s", "source")
    table.title = "other engines, one request"
    table.caption = "above 100 %: fewer bytes were read than in that format, or the figure is for several requests"
    for peer in peers:
        cost = roofline.step_cost(spec, roofline.StepShape(dense=peer.dense))
        moved: Any = cost.bytes * peer.tok_s / 1e9
        table.add_row(
            peer.engine, peer.dense, f"{peer.tok_s:g}", f"{moved:.0f}", f"{moved / gb_s:.0%}", Text(peer.source)
        )
    return table


def _overlap_in_words(overlap: float) -> str:
    return "tokens routed independently of each other" if not overlap else f"overlap {overlap:g}"
