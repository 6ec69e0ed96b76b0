"""The verb `lab judge`: a verdict on logs, traces, crash bundles and libraries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from firesteel.cli.choices import GPUS
from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.errors import UserError
from firesteel.lab.judge.recognise import ENGINES

if TYPE_CHECKING:
    from firesteel.lab.judge.judge import Judgement
    from firesteel.lab.judge.library import LibraryVerdict


CAPABILITY = re.compile(r"(?:sm_?)?(\d+)\.?(\d)[af]?$")


@lab.command(name="judge")
def lab_judge(
    files: Annotated[
        list[Path],
        typer.Argument(help="logs, traces (PyTorch's JSON, nsys's SQLite), crash bundles, libraries, or folders"),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(help=f"GPU that they are judged for: {', '.join(GPUS)}, a compute capability, or cpu"),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help=f"engine: {', '.join(sorted(ENGINES))} (default: recognised)")
    ] = None,
    path: Annotated[str, typer.Option(help="kernel path that the slots must show, as for lab run")] = "",
    expect: Annotated[str, typer.Option(help="slots and the values they must show: SLOT=VALUE,...")] = "",
    as_json: AsJson = False,
) -> None:
    """Judge files of any engine: slots with cures, architectures of libraries, and what ended a server.

    The exit code is 0 if all of it is as it must be, 1 if anything is wrong, and 3 if not all could be judged.
    """
    from firesteel.lab.judge.judge import Question, judge_files

    machine, capability = find_machine(gpu)
    question = Question(engine=engine or "", machine=machine, capability=capability, path=path, expect=expect)
    judgement = judge_files(files, question)
    if as_json:
        print_json(judgement.as_dict())
    else:
        show_judgement(judgement)
    raise typer.Exit(judgement.verdict.exit_code)


def find_machine(gpu: str | None) -> tuple[str, tuple[int, int] | None]:
    """Returns the machine and its compute capability, from a name of the table, 12.1, sm_121a or cpu."""
    from firesteel.device.catalogue import shorten_name
    from firesteel.lab.path.evidence import CPU, GPU
    from firesteel.measure.roofline.roofline import GPUS as LISTED

    if gpu is None:
        return "", None
    if gpu.lower() == CPU:
        return CPU, None
    known = LISTED.get(shorten_name(gpu))
    if known is not None:
        return GPU, known.capability
    match = CAPABILITY.match(gpu.lower())
    if match is None:
        raise UserError(f"--gpu {gpu}: write one of {', '.join(GPUS)}, a compute capability such as 12.1, or cpu")
    return GPU, (int(match[1]), int(match[2]))


def show_judgement(judgement: Judgement) -> None:
    from firesteel.cli.lab.slot_table import slot_table

    if judgement.slots is not None:
        say(f"engine: {judgement.engine} ({judgement.engine_by})")
        show(slot_table(judgement.slots))
    elif judgement.has_path_evidence:
        say("the engine is not recognised, so no slot can be judged: name it with --engine")
    if judgement.libraries:
        show(library_table(judgement.libraries))
    for row in judgement.diagnoses:
        say(f"{row.file}: {row.diagnosis.in_words()}")
    say(f"{judgement.verdict.value.upper()} by {', '.join(sorted(set(judgement.files.values())))}")


def library_table(rows: tuple[LibraryVerdict, ...]) -> Table:
    from firesteel.cli.lab.run_table import STYLES

    table = new_table("library", "machine code", "PTX", "verdict", "why", "cure")
    for row in rows:
        code, ptx = " ".join(row.machine_code), " ".join(row.ptx)
        verdict = Text(row.verdict.words, STYLES[row.verdict])
        table.add_row(Text(row.file), code, ptx, verdict, Text(row.words), Text(row.cure))
    return table
