"""The verb `roofline`: the cost of a decode step, and the speed that a GPU's memory allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from firesteel.cli.app import app, warn
from firesteel.cli.bench.options import parse_numbers
from firesteel.cli.choices import (
    DENSE_FORMATS,
    GPUS,
    KV_FORMATS,
    LINK_GB_S,
    LINK_US,
    MATRIX_SHARE,
    PROMPT_LENGTHS,
    STEP_TOKENS,
)
from firesteel.cli.options import AsJson, Model, find_spec, print_json
from firesteel.cli.tables import cost_table, new_table, prediction_table, say, show
from firesteel.errors import UserError
from firesteel.lab.bench.peers import PEERS, Peer

if TYPE_CHECKING:
    from firesteel.measure.roofline import curves, roofline
    from firesteel.model.spec import ModelSpec


HELD = {"bf16": "as published", "mxfp4": "--mxfp4-layers qkv,o,lm_head"}  # formats of dense layers that it computes
PROMPTS = ",".join(map(str, PROMPT_LENGTHS))


@app.command(name="roofline")
def show_roofline(
    gpu: Annotated[str, typer.Option(help="GPU: " + ", ".join(GPUS))],
    model: Model = "gpt-oss-120b",
    dense: Annotated[str, typer.Option(help="format of qkv, o and lm_head: " + ", ".join(DENSE_FORMATS))] = "bf16",
    kv: Annotated[str, typer.Option(help="format of keys and values: " + ", ".join(KV_FORMATS))] = "bf16",
    context: Annotated[int, typer.Option(help="cached tokens per request")] = 0,
    batch: Annotated[int, typer.Option(help="requests decoded together")] = 1,
    experts: Annotated[
        float | None, typer.Option(help="distinct experts per layer (default: those of independent routing)")
    ] = None,
    share: Annotated[float, typer.Option(help="share of the ceiling, for the prediction")] = 0.85,
    overlap: Annotated[
        float, typer.Option(help="overlap of experts between tokens, for larger batches and drafts: 0 none, 1 all")
    ] = 0.0,
    draft_tokens: Annotated[
        int, typer.Option(help="maximum number of drafted tokens, to show their cost and gain")
    ] = 0,
    speculate: Annotated[int | None, typer.Option(hidden=True)] = None,
    acceptance: Annotated[
        float | None, typer.Option(help="probability that a drafted token is accepted if the one before it was")
    ] = None,
    draft_gb: Annotated[float, typer.Option(help="GB read to draft one token")] = 0.0,
    prompts: Annotated[str, typer.Option(help="tokens per prompt, to predict prompts; empty: none")] = PROMPTS,
    step_tokens: Annotated[
        int, typer.Option(min=1, help="maximum tokens per step of a prompt, as --max-num-batched-tokens")
    ] = STEP_TOKENS,
    matrix_share: Annotated[
        float, typer.Option(help="share of the matrix rate, for prompts; --share applies to their memory traffic")
    ] = MATRIX_SHARE,
    nodes: Annotated[
        int, typer.Option(help="machines that split every layer (vLLM plugin, Ray): 1, 2 or 4", min=1)
    ] = 1,
    link_gb_s: Annotated[float, typer.Option("--link-gb-s", help="GB/s between the machines")] = LINK_GB_S,
    link_us: Annotated[
        float, typer.Option("--link-us", help="us of one sum of a few KB over the machines")
    ] = LINK_US,
    plot: Annotated[Path | None, typer.Option(help="HTML page to write: times per op, batches, drafts")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the bytes and operations of one decode step, and the speed that a GPU's memory allows."""
    from firesteel.cli.machine.roofline_predictions import nodes_table, predict_prompt_rows, prompt_table
    from firesteel.device.catalogue import shorten_name
    from firesteel.lab.report.roofline_page import write_page
    from firesteel.measure.roofline import curves, roofline
    from firesteel.measure.roofline.nodes import Link, nodes_assumptions, predict_nodes

    if speculate is not None:
        warn("--speculate is now --draft-tokens; the next version refuses the old name")
        draft_tokens = speculate
    if acceptance is not None and not draft_tokens:
        raise UserError("--acceptance applies to drafted tokens: give --draft-tokens K too")
    spec = find_spec(model)
    step = roofline.StepShape(dense=dense, kv=kv, context=context, requests=batch, distinct_experts=experts)
    cost, chosen = roofline.step_cost(spec, step), roofline.find_gpu(gpu)
    predictions = roofline.predict(cost, chosen, share)
    assumed = roofline.assumptions(cost, chosen, share)
    gb_s = predictions[-1].gb_s
    formats = roofline.compare_dense(spec, step)
    batches = curves.batch_curve(spec, step, gb_s, overlap=overlap)
    drafts = (
        curves.draft_curve(
            spec, step, draft_tokens, acceptance=acceptance, overlap=overlap, draft_bytes=draft_gb * 1e9
        )
        if draft_tokens
        else []
    )
    lengths = parse_numbers("--prompts", prompts, 1, None) if prompts else ()
    prompt_predictions, prompts_assumed = predict_prompt_rows(
        spec, step, gpu, model, lengths, step_tokens=step_tokens, share=share, matrix_share=matrix_share
    )
    link = Link() if link_us == LINK_US else Link(latency_us=link_us, latency_by="--link-us")
    link = replace(link, gb_s=link_gb_s)
    split = None if nodes == 1 else predict_nodes(spec, cost, gb_s, share, nodes, link)
    if plot is not None:
        title = f"{model} on {chosen.title}"
        say(f"wrote {write_page(plot, title, cost, predictions, assumed, batches, drafts)}")
    if as_json:
        print_json(
            {
                "model": model,
                "gpu": chosen.title,
                **cost.as_dict(),
                "assumptions": assumed,
                "dense_formats": {
                    name: {"bytes": cost.bytes, "ceiling_tok_s": cost.tok_s(gb_s)} for name, cost in formats.items()
                },
                "predictions": [prediction.as_dict() for prediction in predictions],
                "batches": [point.as_dict() for point in batches],
                "speculation": [point.as_dict() for point in drafts],
                "prompts": [prediction.as_dict() for prediction in prompt_predictions],
                "prompt_assumptions": prompts_assumed,
                "nodes": None if split is None else split.as_dict(),
                "nodes_assumptions": [] if split is None else nodes_assumptions(nodes, link),
            }
        )
        return
    show(cost_table(cost, f"{model}, one step", gb_s))
    show(prediction_table(predictions, chosen.title))
    show(dense_table(formats, gb_s))
    for line in assumed:
        show(Text(f"assumed: {line}"))
    show(batch_table(batches, spec, overlap, gb_s))
    if drafts:
        show(draft_table(drafts, acceptance, overlap))
    if prompt_predictions:
        show(prompt_table(prompt_predictions, chosen.title))
    for line in prompts_assumed:
        show(Text(f"assumed for prompts: {line}"))
    if split is not None:
        show(nodes_table(split, chosen.title))
        for line in nodes_assumptions(nodes, link):
            show(Text(f"assumed for {nodes} nodes: {line}"))
    if peers := [peer for peer in PEERS if peer.gpu == shorten_name(gpu) and peer.model == model]:
        show(peer_table(peers, spec, gb_s))


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
    from firesteel.measure.roofline import curves

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
    from firesteel.measure.roofline import roofline

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
