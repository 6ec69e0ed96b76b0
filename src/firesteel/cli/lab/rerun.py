"""The verb lab rerun: makes a result again from its file alone; knows no level."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.lab.run import lab
from firesteel.cli.tables import say
from firesteel.config import child_environment
from firesteel.device import find_device
from firesteel.lab.report.report import read_result
from firesteel.lab.rerun import Rerun, plan_rerun
from firesteel.surroundings import look_around


@lab.command(name="rerun")
def lab_rerun(
    result: Annotated[Path, typer.Argument(help="a result.json, the folder of a run, or a record")],
    out: Annotated[Path, typer.Option(help="folder for the new result")] = Path("firesteel-rerun"),
    dry: Annotated[bool, typer.Option("--dry", help="say the command, run nothing")] = False,
) -> None:
    """Run what a result came from once more, with its settings; says what differs on this machine."""
    plan = plan_rerun(read_result(result), dataclasses.asdict(look_around(find_device())), out)
    for line in plan.differences:
        say(f"differs: {line}")
    print(in_shell(plan), flush=True)
    if dry:
        return
    environment = child_environment(plan.environment, without=plan.without)
    # In this process's place: signals and the exit code are the command's own, and nobody ends it before its time.
    os.execvpe(sys.executable, [sys.executable, "-m", "firesteel", *plan.words], environment)


def in_shell(plan: Rerun) -> str:
    """The command as one would type it."""
    less = ["env", *(f"-u {name}" for name in plan.without)] if plan.without else []
    settings = [f"{name}={shlex.quote(value)}" for name, value in plan.environment.items()]
    return " ".join([*less, *settings, shlex.join(["firesteel", *plan.words])])
