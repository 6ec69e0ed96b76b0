"""The verb `lab rerun`: produces a result again from its file alone."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firesteel.cli.lab.run import lab
from firesteel.cli.tables import say
from firesteel.config import child_environment

if TYPE_CHECKING:
    from firesteel.lab.rerun import Rerun


@lab.command(name="rerun")
def lab_rerun(
    result: Annotated[Path, typer.Argument(help="a result.json, the folder of a run, or a record")],
    out: Annotated[Path, typer.Option(help="folder for the new result")] = Path("firesteel-rerun"),
    dry: Annotated[bool, typer.Option("--dry", help="print the command without running it")] = False,
) -> None:
    """Repeat the run of a result with its settings; lists what differs on this machine."""
    from firesteel.device import find_device
    from firesteel.lab.rerun import plan_rerun
    from firesteel.lab.result import read_result
    from firesteel.lab.surroundings import StatedSurroundings

    plan = plan_rerun(read_result(result), StatedSurroundings.now(find_device()), out)
    for line in plan.differences:
        say(f"differs: {line}")
    print(in_shell(plan), flush=True)
    if dry:
        return
    environment = child_environment(plan.environment, without=plan.without)
    # Replaces this process, so that signals and the exit code are the command's own.
    os.execvpe(sys.executable, [sys.executable, "-m", "firesteel", *plan.words], environment)


def in_shell(plan: Rerun) -> str:
    """Returns the command as it would be typed."""
    removed = ["env", *(f"-u {name}" for name in plan.without)] if plan.without else []
    settings = [f"{name}={shlex.quote(value)}" for name, value in plan.environment.items()]
    return " ".join([*removed, *settings, shlex.join(["firesteel", *plan.words])])
