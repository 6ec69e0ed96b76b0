"""The verb `pull`: fetches a checkpoint from the Hugging Face hub."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from firesteel.cli.app import app
from firesteel.cli.tables import new_table, say, show
from firesteel.errors import UserError
from firesteel.hub.cache import MAIN, find_cache, find_snapshot, list_repositories
from firesteel.hub.names import BUILT_IN, find_repository, find_short_name

if TYPE_CHECKING:  # huggingface_hub's client takes half a second to import
    from firesteel.hub.plan import PullItem, PullPlan


@app.command()
def pull(
    name: Annotated[
        str, typer.Argument(help="gpt-oss-120b, gpt-oss-20b or a repository such as openai/gpt-oss-20b")
    ],
    revision: Annotated[str, typer.Option(help="branch, tag or commit")] = MAIN,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would be fetched, and fetch nothing")
    ] = False,
) -> None:
    """Fetch a model from the Hugging Face hub: only the files needed, resumed where they ended, verified."""
    if name == BUILT_IN.name:
        say(f"{name} is built in: there is nothing to fetch")
        announce(BUILT_IN, name)
        return
    from firesteel.hub.faults import Unreachable
    from firesteel.hub.fetch import write_ref
    from firesteel.hub.listing import list_remote
    from firesteel.hub.plan import plan_pull

    if name.startswith((".", "/", "~")):
        raise UserError(
            f"{name} is a path: give a name on the hub such as openai/gpt-oss-20b; folders are served as is"
        )
    repository = find_repository(name, list_repositories())
    try:
        plan = plan_pull(list_remote(repository, revision))
    except Unreachable as error:
        announce(find_complete(repository, revision, error), find_command(repository, revision))
        return
    if plan.is_complete:
        if not dry_run:
            write_ref(plan)
        say(f"{in_words(plan)}, complete in {find_cache()}")
        announce(plan.snapshot, find_command(repository, revision))
    elif dry_run:
        check_plan(plan, is_dry=True)
    else:
        check_plan(plan)
        announce(run(plan, name), find_command(repository, revision))


def check_plan(plan: PullPlan, *, is_dry: bool = False) -> None:
    """Raises UserError if the model is not one that firesteel serves, or if it cannot be fetched to this disk."""
    from firesteel.hub.client import read_config
    from firesteel.hub.plan import check_disk, check_sizes
    from firesteel.model.fields import SpecError
    from firesteel.model.spec import parse_spec

    try:
        parse_spec(read_config(plan))
    except SpecError as error:
        raise UserError(f"{plan.listing.repository} is not fetched, firesteel could not run it: {error}") from error
    if is_dry:
        show(file_table(plan))
    check_sizes(plan)
    check_disk(plan)


def run(plan: PullPlan, name: str) -> Path:
    """Fetches the files, and returns their folder; Ctrl-C exits with 130 and says how to go on."""
    from firesteel.cli.model.local_models import check_checkpoint
    from firesteel.cli.model.transfer import transfer_progress
    from firesteel.hub.fetch import fetch
    from firesteel.hub.plan import plan_pull

    start, listing = time.monotonic(), plan.listing
    kept = f", {decimal(plan.held_bytes)} of it there already" if plan.held_bytes else ""
    say(f"fetching {in_words(plan)}{kept}, into {find_cache()}")
    try:
        with transfer_progress(find_short_name(listing.repository), plan.held_bytes) as report:
            folder = fetch(plan, report)
    except KeyboardInterrupt:
        held = plan_pull(listing).held_bytes
        again = shlex.join(
            ["firesteel", "pull", name, *(["--revision", listing.revision] if listing.revision != MAIN else [])]
        )
        say(f"interrupted: {decimal(held)} of {decimal(plan.total_bytes)} are kept; resume with `{again}`")
        raise typer.Exit(130) from None
    check_checkpoint(folder)
    seconds = max(time.monotonic() - start, 1e-9)
    rate = decimal(int(plan.missing_bytes / seconds))
    say(f"fetched {decimal(plan.missing_bytes)} in {seconds:.1f} s ({rate}/s) and verified its checksums")
    return folder


def find_complete(repository: str, revision: str, error: UserError) -> Path:
    """Returns the folder of a checkpoint that is complete in the cache; raises `error` if there is none."""
    from firesteel.cli.model.local_models import check_checkpoint

    folder = find_snapshot(repository, revision)
    if folder is None:
        raise error
    try:
        check_checkpoint(folder)
    except UserError:
        raise error from None
    say(f"warning: {error}")
    say(f"{repository} is complete in {find_cache()}; whether the hub has a newer one is unknown")
    return folder


def find_command(repository: str, revision: str) -> str:
    """Returns what `firesteel serve` takes for a fetched model: its name, or the folder of another revision."""
    if revision == MAIN:
        return find_short_name(repository)
    return shlex.quote(str(find_snapshot(repository, revision)))


def announce(folder: Path, model: str) -> None:
    """Prints the folder to stdout, for programs; the rest goes to stderr."""
    say(f"serve it: firesteel serve {model}")
    print(folder, flush=True)


def in_words(plan: PullPlan) -> str:
    listing = plan.listing
    return (
        f"{listing.repository} ({listing.revision}, {listing.commit[:7]}): {len(plan.items)} files, "
        f"{decimal(plan.total_bytes)}"
    )


def file_table(plan: PullPlan) -> Table:
    """Builds the table of what a pull would fetch."""
    table = new_table("file", "size", "to fetch", "state")
    table.title = in_words(plan)
    table.caption = f"{decimal(plan.missing_bytes)} to fetch into {find_cache()}"
    for item in plan.items:
        missing = item.file.num_bytes - item.held_bytes
        table.add_row(Text(item.file.name), decimal(item.file.num_bytes), decimal(missing), state_of(item))
    return table


def state_of(item: PullItem) -> str:
    if item.is_fetched:
        return "in the cache"
    return "to be resumed" if item.held_bytes else "to be fetched"
