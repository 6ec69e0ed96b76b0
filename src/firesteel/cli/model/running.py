"""Verbs that run a model or show its settings: generate, eval, env; knows no arithmetic."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from firesteel.cli.app import app, show_error, with_knobs
from firesteel.cli.progress import loading_bars, progress_bar
from firesteel.cli.tables import ledger_table, new_table, report_table, say, show
from firesteel.config import knobs as all_knobs
from firesteel.config import resolve, shown_value
from firesteel.eval import evaluate
from firesteel.kernels.proof.profile_check import LaunchWatch
from firesteel.llm import LLM
from firesteel.types import SamplingParams


@app.command()
@with_knobs
def generate(
    prompt: Annotated[str, typer.Option(help="text to continue")],
    knobs: dict[str, Any],
    max_tokens: Annotated[int, typer.Option(help="most tokens to add")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    seed: Annotated[int, typer.Option(help="of the random stream")] = 0,
    ledger: Annotated[
        bool,
        typer.Option("--ledger", help="print what ran, with times, without graphs; on a GPU a profiler must agree"),
    ] = False,
) -> None:
    """Continue a text, printed as it is made."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    llm = load({**({"cuda_graphs": False} if ledger else {}), **knobs})
    llm.ledger().timed = ledger
    with ExitStack() as stack:
        watch = LaunchWatch(llm.ledger(), llm.device) if ledger and llm.device.is_cuda else None
        if watch is not None:
            stack.enter_context(watch)
        for piece in llm.stream(prompt, params):
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n")
    if ledger:
        show(ledger_table(llm))
    if watch is not None:
        show_agreement(watch)


def show_agreement(watch: LaunchWatch) -> None:
    """One line if the profiler saw what the ledger counted, else the differences and exit code 1."""
    if not watch.differences:
        show(Text(f"ledger and profiler agree: {watch.count} launches"))
        return
    for difference in watch.differences:
        show_error(f"ledger and profiler differ: {difference}")
    raise typer.Exit(1)


@app.command()
@partial(with_knobs, is_server=True)
def env(knobs: dict[str, Any], as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Every setting with its value and where it came from."""
    settings = resolve(knobs)
    rows = [
        {
            "name": knob.name,
            "value": shown_value(knob.name, getattr(getattr(settings.config, knob.section), knob.name)),
            "origin": settings.origins[knob.name],
            "variable": knob.env,
            "help": knob.help,
        }
        for knob in all_knobs().values()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = new_table("setting", "value", "origin", "variable", "meaning")
    for row in rows:
        table.add_row(row["name"], Text(str(row["value"])), Text(row["origin"]), row["variable"], Text(row["help"]))
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
    with progress_bar("answering") as report_progress:
        report = evaluate(llm, limit=limit, progress=report_progress)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        show(report_table(report))


def load(knobs: dict[str, Any]) -> LLM:
    """The model, with progress bars on a terminal and what was read and made on stderr."""
    with loading_bars() as (progress, preparing):
        llm = LLM(progress=progress, preparing=preparing, **knobs)
    made = llm.engine.statistics()
    if num_bytes := made.graph_bytes + made.prompt_graph_bytes:
        seconds = made.graph_s + made.prompt_graph_s
        say(f"captured {made.graphs + made.prompt_graphs} steps in {seconds:.1f} s: {num_bytes >> 20} MiB")
    read = llm.load_report
    say(f"read {read.num_bytes / 1e9:.2f} GB in {read.seconds:.1f} s: {read.gb_s:.2f} GB/s")
    for layer in read.quantized:
        say(layer.in_words())
    return llm
