"""The verb `lab rerun`: produces a result again from its file alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.folder import writing_to
from firesteel.cli.lab.run import lab
from firesteel.cli.tables import say
from firesteel.config import child_environment


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
    print(plan.in_shell(), flush=True)
    if dry:
        for path, content in plan.files.items():
            print(f"{path}:\n{content}")
        return
    with writing_to(out):
        for path, content in plan.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    environment = child_environment(plan.environment, without=plan.without)
    # Replaces this process, so that signals and the exit code are the command's own.
    os.execvpe(sys.executable, [sys.executable, "-m", "firesteel", *plan.words], environment)
