"""Verbs that examine the machine and count what a step costs: doctor, roofline; knows no kernel."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from firesteel.cli.app import app
from firesteel.cli.options import AsJson, Model, find_spec, print_json
from firesteel.cli.tables import cost_table, finding_table, prediction_table, show
from firesteel.doctor import Status, examine
from firesteel.measure import roofline


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What this machine has, what would be used and why; exit code 1 if something is wrong."""
    findings = examine()
    if as_json:
        print_json([finding.as_dict() for finding in findings])
    else:
        show(finding_table(findings))
    if any(finding.status is Status.FAIL for finding in findings):
        raise typer.Exit(1)


@app.command(name="roofline")
def show_roofline(
    gpu: Annotated[str, typer.Option(help=", ".join(roofline.GPUS))],
    model: Model = "gpt-oss-120b",
    dense: Annotated[str, typer.Option(help="of qkv, o and lm_head: " + ", ".join(roofline.ROW_BYTES))] = "bf16",
    kv: Annotated[str, typer.Option(help=", ".join(roofline.KV_BYTES))] = "bf16",
    context: Annotated[int, typer.Option(help="tokens each request holds in the cache")] = 0,
    batch: Annotated[int, typer.Option(help="requests decoded together")] = 1,
    experts: Annotated[
        float | None, typer.Option(help="distinct ones a layer; independent routing if not given")
    ] = None,
    share: Annotated[float, typer.Option(help="of the ceiling, for the prediction")] = 0.85,
    draft: Annotated[int | None, typer.Option(help="drafted tokens: adds the break-even of speculation")] = None,
    as_json: AsJson = False,
) -> None:
    """The bytes and operations of one decoding step, and the speed a GPU's memory allows."""
    spec = find_spec(model)
    step = roofline.Step(dense=dense, kv=kv, context=context, requests=batch, distinct_experts=experts)
    cost, chosen = roofline.step_cost(spec, step), roofline.find_gpu(gpu)
    predictions = roofline.predict(cost, chosen, share)
    assumed = roofline.assumptions(cost, chosen, share)
    speculation = None if draft is None else roofline.speculate(spec, step, draft)
    if as_json:
        found = {"model": model, "gpu": chosen.title, **cost.as_dict()}
        found["predictions"] = [prediction.as_dict() for prediction in predictions]
        found["assumptions"] = assumed
        found["speculation"] = None if speculation is None else speculation.as_dict()
        print_json(found)
        return
    show(cost_table(cost, f"{model}, one step", predictions[-1].gb_s))
    show(prediction_table(predictions, chosen.title))
    for line in assumed:
        show(Text(f"assumed: {line}"))
    if speculation is not None:
        show(Text(speculation.in_words()))
