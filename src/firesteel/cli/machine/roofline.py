"""The verb `roofline`: the cost of a decode step, and the speed that a GPU's memory allows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

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
from firesteel.errors import UserError

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
    from rich.text import Text

    from firesteel.cli.machine.roofline_predictions import nodes_table, predict_prompt_rows, prompt_table
    from firesteel.cli.machine.roofline_tables import batch_table, dense_table, draft_table, peer_table
    from firesteel.cli.tables import cost_table, prediction_table, say, show
    from firesteel.device.catalogue import shorten_name
    from firesteel.lab.bench.peers import PEERS
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
