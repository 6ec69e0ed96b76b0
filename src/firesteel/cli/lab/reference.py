"""The verb `lab reference`: records the answers of a trusted server once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from firesteel.atomic import write_atomically
from firesteel.cli.folder import writing_to
from firesteel.cli.lab.run import lab
from firesteel.cli.tables import say
from firesteel.config import find_reference_key
from firesteel.exit_code import ExitCode
from firesteel.lab.verdict import Verdict


@lab.command(name="reference")
def lab_reference(
    url: Annotated[str, typer.Option(help="address of a running server whose answers are trusted")],
    out: Annotated[Path, typer.Option(help="file for lab run --reference")],
    model: Annotated[
        str, typer.Option(help="checkpoint folder, or name in the local cache (default: as the server names it)")
    ] = "",
    answer_s: Annotated[float, typer.Option(min=1, help="seconds until a request must be answered")] = 600.0,
) -> None:
    """Record texts, greedy tokens, log-probabilities and margins of a server; exit code 3 if it lacks them.

    `lab run --reference FILE` compares a later server with the file. A key is read from LAB_REFERENCE_API_KEY.
    """
    from firesteel.lab.client.api import Api
    from firesteel.lab.client.wire import RequestFailed
    from firesteel.lab.reference.recorded import with_hashes
    from firesteel.lab.reference.recording import NotRecordable, record_reference
    from firesteel.lab.servers.target import Target

    api = replace(Api.of(url, find_reference_key()), timeout_s=answer_s)
    console = Console(stderr=True)
    try:
        with writing_to(out.parent), console.status(f"asking {api.url}") as status:
            target = Target(api=api, kind="other", folder=out.parent, model=model, on_progress=status.update)
            target.identify()
            target.model = model or target.api.model
            reference, coherence = record_reference(target)
            write_atomically(out, with_hashes(reference))
    except (RequestFailed, NotRecordable) as error:
        say(f"not recorded: {error}")
        raise typer.Exit(ExitCode.UNPROVEN) from error
    if coherence.verdict is not Verdict.PASSED:
        say(f"doubtful reference: {coherence.in_words()}")
    say(f"{reference.name}: {len(reference.texts)} texts and {len(reference.continuations)} continuations in {out}")
