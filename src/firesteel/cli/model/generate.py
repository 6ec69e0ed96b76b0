"""The verb `generate`: continues a text."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firesteel.cli.app import app, show_error, with_settings
from firesteel.cli.options import check_model
from firesteel.errors import UserError
from firesteel.exit_code import ExitCode

if TYPE_CHECKING:
    from firesteel.kernels.proof.profile_check import LaunchWatch


@app.command()
@with_settings
def generate(
    settings: dict[str, Any],
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="text to continue")] = None,
    prompt: Annotated[str | None, typer.Option(help="same as TEXT")] = None,
    max_tokens: Annotated[int, typer.Option(help="maximum number of new tokens")] = 128,
    temperature: Annotated[float, typer.Option(help="sampling temperature; 0: greedy")] = 0.0,
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger",
            help="table of the kernels that ran and their times, without CUDA graphs; on a GPU it is an error if a "
            "profiler saw other kernels",
        ),
    ] = False,
) -> None:
    """Continue a text; the output is printed token by token."""
    if (text is None) == (prompt is None):
        raise UserError('give one text to continue: firesteel generate "The capital of France is"')
    check_model(settings)
    from rich.text import Text

    from firesteel.cli.model.load import load
    from firesteel.cli.tables import draft_line, ledger_table, show
    from firesteel.kernels.proof.profile_check import LaunchWatch
    from firesteel.types import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    llm = load({**({"cuda_graphs": False} if ledger else {}), **settings})
    llm.ledger().timed = ledger
    with ExitStack() as stack:
        watch = LaunchWatch(llm.ledger(), llm.device) if ledger and llm.device.is_cuda else None
        if watch is not None:
            stack.enter_context(watch)
        for piece in llm.stream(text or prompt or "", params):
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n")
    if ledger:
        show(ledger_table(llm))
        if (kind := llm.settings.config.speculate.speculate) != "off":
            show(Text(draft_line(kind, llm.engine.statistics())))
    if watch is not None:
        show_agreement(watch)


def show_agreement(watch: LaunchWatch) -> None:
    """Prints one line if the profiler saw what the ledger counted; else prints differences and exits as failed."""
    from rich.text import Text

    from firesteel.cli.tables import show

    if not watch.differences:
        show(Text(f"ledger and profiler agree: {watch.count} launches"))
        return
    for difference in watch.differences:
        show_error(f"ledger and profiler differ: {difference}")
    raise typer.Exit(ExitCode.FAILED)
