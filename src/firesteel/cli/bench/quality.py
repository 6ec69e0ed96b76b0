"""The verb `bench quality`: the cost of each precision for the built-in model, or any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from firesteel.cli.app import with_settings
from firesteel.cli.bench.options import RECORDS, Out, bench, check_folder
from firesteel.cli.choices import PRECISIONS as PRECISION_NAMES
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.errors import UserError

if TYPE_CHECKING:
    from firesteel.exam import ExamItem
    from firesteel.llm import LLM
    from firesteel.quality import Answers, Quality


@bench.command(name="quality")
@with_settings
def bench_quality(
    settings: dict[str, Any],
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{'; '.join(PRECISION_NAMES)}. May be repeated; each is compared with the first (default: all "
            "but MXFP6, which is emulated and slow)"
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="questions per family (default: all)")] = None,
    out: Out = RECORDS,
    as_json: AsJson = False,
) -> None:
    """Perplexity, exact match and answers changed with weights and activations in fewer bits."""
    from firesteel.cli.model.load import load
    from firesteel.eval import take
    from firesteel.exam import EXAM, TEXT, read_items
    from firesteel.measure.ops.memory import free_memory
    from firesteel.quality import PRECISIONS, compare

    names = choose(precision)
    refuse(settings, names)
    check_folder(out)
    items, texts = take(read_items(EXAM), limit), read_items(TEXT)
    measured: list[Quality] = []
    first: Answers | None = None
    for name in names:
        say(name)
        llm = load({**settings, **PRECISIONS[name]})
        answers = _examine(llm, name, items, texts)
        first = first or answers
        measured.append(compare(answers, first))
        measured[-1].record(llm, limit).save(out)
        device, model = llm.device, llm.directory.name
        del llm  # two models may not fit into memory at once
        free_memory(device)
    if as_json:
        print_json([quality.as_dict() for quality in measured])
    else:
        dtype = str(device.dtype).removeprefix("torch.")
        show(quality_table(measured, f"{model} on {device.name} in {dtype}"))
    say(f"records are in {out}")


def _examine(llm: LLM, name: str, items: Sequence[ExamItem], texts: Sequence[ExamItem]) -> Answers:
    from firesteel.quality import examine

    with progress_bar("answering") as report_progress:
        return examine(llm, name, items, texts, progress=report_progress)


def choose(asked: Sequence[str] | None) -> list[str]:
    """Returns the requested precisions in a fixed order, after the one they are compared with."""
    from firesteel.quality import MEASURED, PRECISIONS, SHIPPED

    for name in asked or ():
        if name not in PRECISIONS:
            raise UserError(f"--precision {name}: must be one of {'; '.join(PRECISIONS)}")
    return [name for name in PRECISIONS if name in (asked or MEASURED) or name == SHIPPED]


def refuse(settings: dict[str, Any], names: Sequence[str]) -> None:
    """Raises if the user set what one of the precisions sets."""
    from firesteel.quality import PRECISIONS

    if given := [name for precision in names for name in PRECISIONS[precision] if name in settings]:
        flag = given[0].replace("_", "-")
        raise UserError(f"--{flag}: bench quality sets it itself; leave it out and choose with --precision")


def quality_table(measured: Sequence[Quality], title: str) -> Table:
    table = new_table(
        "precision", "perplexity", "change", "right", "exact match", "answers changed", "lost", "gained"
    )
    first = measured[0]
    table.title = title
    table.caption = (
        f"{first.items} questions, perplexity over {first.perplexity_tokens} tokens; changes against "
        f"{first.precision}; activations are rounded where they meet MXFP4 weights"
    )
    for quality in measured:
        table.add_row(
            quality.precision,
            f"{quality.perplexity:.4f}",
            f"{100 * quality.perplexity_change:+.3f} %",
            str(quality.right),
            f"{100 * quality.share:.2f} %",
            str(quality.changed),
            str(quality.lost),
            str(quality.gained),
        )
    return table
