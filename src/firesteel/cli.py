"""The command line: verbs, flags made from config.py, tables on the terminal; knows no arithmetic."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table
from rich.text import Text

from firesteel.config import Knob, knobs, resolve
from firesteel.doctor import Status, examine
from firesteel.errors import UserError
from firesteel.eval import Report, evaluate
from firesteel.hub import find_checkpoint
from firesteel.llm import LLM
from firesteel.measure import roofline
from firesteel.model.spec import PRESETS, read_spec
from firesteel.types import SamplingParams

PIPE_WIDTH = 1000  # columns of a table that goes to a file or a pipe: rows stay whole there

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point: a UserError is shown as one line, anything else is a bug and keeps its traceback."""
    try:
        app()
    except UserError as error:
        message = " ".join(str(error).splitlines())
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def with_knobs(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command one flag for every knob; it receives those given as `knobs`."""
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "knobs"]
    flags = [
        inspect.Parameter(knob.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(knob))
        for knob in knobs().values()
    ]

    def run(**given: Any) -> None:
        chosen = {knob: given.pop(knob) for knob in knobs()}
        command(**given, knobs={name: value for name, value in chosen.items() if value is not None})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    hints = inspect.get_annotations(command, eval_str=True)
    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own]
    run.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*own, *flags)}
    return run


def _flag(knob: Knob) -> Any:
    name = f"--{knob.name.replace('_', '-')}"
    names = [f"{name}/--no-{name[2:]}"] if knob.type is bool else [name]
    default = "none" if knob.default == "" else knob.default
    text = f"{knob.help} (default {default}; {knob.env})"  # rich takes square brackets for markup
    return Annotated[knob.type | None, typer.Option(*names, help=text, rich_help_panel=f"{knob.section} settings")]


@app.command()
@with_knobs
def generate(
    prompt: Annotated[str, typer.Option(help="text to continue")],
    knobs: dict[str, Any],
    max_tokens: Annotated[int, typer.Option(help="most tokens to add")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    seed: Annotated[int, typer.Option(help="of the random stream")] = 0,
    ledger: Annotated[bool, typer.Option("--ledger", help="print what ran, with times")] = False,
) -> None:
    """Continue a text, printed as it is made."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    llm = load(knobs)
    llm.ledger.timed = ledger
    for piece in llm.stream(prompt, params):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    if ledger:
        show(ledger_table(llm))


@app.command()
@with_knobs
def env(knobs: dict[str, Any], as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Every setting with its value and where it came from."""
    settings = resolve(knobs)
    rows = [
        {
            "name": knob.name,
            "value": getattr(getattr(settings.config, knob.section), knob.name),
            "origin": settings.origins[knob.name],
            "variable": knob.env,
            "help": knob.help,
        }
        for knob in _all_knobs()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = new_table("setting", "value", "origin", "variable", "meaning")
    for row in rows:
        table.add_row(row["name"], Text(str(row["value"])), Text(row["origin"]), row["variable"], row["help"])
    show(table)


@app.command(name="eval")
@with_knobs
def evaluate_model(
    knobs: dict[str, Any],
    limit: Annotated[int | None, typer.Option(min=1, help="items of each family; all without it")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Held-out questions and text: exact match by family, and perplexity."""
    llm = load(knobs)
    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    stderr = Console(stderr=True)
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("eval")
        report = evaluate(
            llm, limit=limit, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        show(report_table(report))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """What this machine has, what would be used and why; exit code 1 if something is wrong."""
    findings = examine()
    if as_json:
        print(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        colours = {Status.OK: "green", Status.NOTE: "yellow", Status.FAIL: "bold red"}
        table = new_table("check", "status", "found", "cure")
        for finding in findings:
            mark = Text(finding.status.value, colours[finding.status])
            table.add_row(finding.check, mark, Text(finding.found), Text(finding.cure))
        show(table)
    if any(finding.status is Status.FAIL for finding in findings):
        raise typer.Exit(1)


@app.command(name="roofline")
def show_roofline(
    gpu: Annotated[str, typer.Option(help=", ".join(roofline.GPUS))],
    model: Annotated[str, typer.Option(help="gpt-oss-120b, gpt-oss-20b or a checkpoint")] = "gpt-oss-120b",
    dense: Annotated[str, typer.Option(help="of qkv, o and lm_head: " + ", ".join(roofline.ROW_BYTES))] = "bf16",
    kv: Annotated[str, typer.Option(help=", ".join(roofline.KV_BYTES))] = "bf16",
    context: Annotated[int, typer.Option(help="tokens each request holds in the cache")] = 0,
    batch: Annotated[int, typer.Option(help="requests decoded together")] = 1,
    experts: Annotated[
        float | None, typer.Option(help="distinct ones a layer; independent routing if not given")
    ] = None,
    share: Annotated[float, typer.Option(help="of the ceiling, for the prediction")] = 0.85,
    draft: Annotated[int | None, typer.Option(help="drafted tokens: adds the break-even of speculation")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """The bytes and operations of one decoding step, and the speed a GPU's memory allows."""
    spec = PRESETS[model] if model in PRESETS else read_spec(find_checkpoint(model))
    step = roofline.Step(dense=dense, kv=kv, context=context, requests=batch, distinct_experts=experts)
    cost, chosen = roofline.step_cost(spec, step), roofline.find_gpu(gpu)
    predictions = roofline.predict(cost, chosen, share)
    speculation = None if draft is None else roofline.speculate(spec, step, draft)
    if as_json:
        found = {"model": model, "gpu": chosen.title, **cost.as_dict()}
        found["predictions"] = [prediction.as_dict() for prediction in predictions]
        found["speculation"] = None if speculation is None else speculation.as_dict()
        print(json.dumps(found, indent=2))
        return
    show(cost_table(cost, f"{model}, one step", predictions[-1].gb_s))
    show(prediction_table(predictions, chosen.title))
    if speculation is not None:
        show(Text(speculation.in_words()))


def load(knobs: dict[str, Any]) -> LLM:
    """The model, with a progress bar on a terminal and the reading speed on stderr."""
    columns = (TextColumn("loading weights"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    stderr = Console(stderr=True)
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("load")
        llm = LLM(progress=lambda done, total: bar.update(task, completed=done, total=total), **knobs)
    read = llm.load_report
    stderr.print(
        f"read {read.num_bytes / 1e9:.2f} GB in {read.seconds:.1f} s: {read.gb_s:.2f} GB/s", highlight=False
    )
    return llm


def report_table(report: Report) -> Table:
    settings = report.settings
    chosen = ", ".join(sorted(set(settings["kernels"].values())))
    caption = (
        f"perplexity {report.perplexity:.3f} over {report.perplexity_tokens} tokens; {report.seconds:.0f} s; "
        f"{settings['model']} on {settings['device']} in {settings['dtype']}, kernels: {chosen}, "
        f"sinks {'on' if settings['sinks'] else 'off'}"
    )
    table = Table("family", "items", "right", "exact match", title="held-out evaluation", caption=caption)
    for score in (*report.scores, report.overall):
        if score.family == "all":
            table.add_section()
        table.add_row(score.family, str(score.items), str(score.right), f"{100 * score.share:.1f} %")
    return table


def cost_table(cost: roofline.StepCost, title: str, gb_s: float) -> Table:
    step = cost.step
    table = new_table("op", "part", "calls", "MB", "share", "GFLOP", "FLOP/byte", f"us at {gb_s:.0f} GB/s")
    table.title = title
    table.caption = (
        f"dense {step.dense}, experts mxfp4, kv {step.kv}, context {step.context}, batch {step.requests}: "
        f"{cost.distinct_experts:.1f} distinct experts a layer"
    )
    total = roofline.OpCost(
        op="all", part="", calls=sum(op.calls for op in cost.ops), vector_bytes=cost.bytes, flops=cost.flops
    )
    for op in (*cost.ops, total):
        if op is total:
            table.add_section()
        table.add_row(
            op.op, op.part, str(op.calls), f"{op.bytes / 1e6:.1f}", f"{100 * op.bytes / cost.bytes:.1f} %",
            f"{op.flops / 1e9:.2f}", f"{op.flops / op.bytes:.1f}", f"{op.bytes / gb_s / 1e3:.1f}",
        )  # fmt: skip
    return table


def prediction_table(predictions: list[roofline.Prediction], title: str) -> Table:
    table = new_table("bandwidth", "GB/s", "ms a step", "ceiling tok/s", "at share", "tok/s", "status")
    table.title = f"{title}, all requests together"
    for one in predictions:
        table.add_row(
            one.bandwidth, f"{one.gb_s:.0f}", f"{one.step_ms:.3f}", f"{one.ceiling_tok_s:.1f}",
            f"{100 * one.share:.0f} %", f"{one.predicted_tok_s:.1f}", one.status,
        )  # fmt: skip
    return table


def ledger_table(llm: LLM) -> Table:
    table = new_table("op", "implementation", "activations", "calls", "ms in all", "us a call", "kernels")
    table.title = f"what ran on {llm.device.name}"
    for ran, entry in sorted(llm.ledger.entries.items(), key=lambda item: -item[1].seconds):
        each_us = entry.seconds / entry.calls * 1e6
        kernels = "\n".join(
            f"{count} x {' '.join((one.kernel, one.tile))} {one.artefact[:8]}"
            for one, count in entry.launches.items()
        )
        table.add_row(*ran, str(entry.calls), f"{entry.seconds * 1e3:.1f}", f"{each_us:.0f}", kernels)
    return table


def new_table(*headings: str) -> Table:
    return Table(*(Column(heading, overflow="fold") for heading in headings))


def show(table: Table | Text) -> None:
    """Folded to the width of a terminal; nothing is cut off."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    console.print(table)


def _all_knobs() -> list[Knob]:
    return list(knobs().values())
