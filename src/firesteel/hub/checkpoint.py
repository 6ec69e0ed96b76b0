"""Finds a checkpoint folder: built in, by path, or by name in the Hugging Face cache. Never downloads."""

from __future__ import annotations

from pathlib import Path

from firesteel.errors import UserError
from firesteel.hub.cache import MAIN, find_snapshot, list_repositories, list_snapshots
from firesteel.hub.names import BUILT_IN, find_repository, find_short_name, suggest


def find_checkpoint(name: str) -> Path:
    """Returns the folder of a model; raises UserError naming `firesteel pull` if the cache does not have it."""
    if name == BUILT_IN.name:
        return BUILT_IN
    if name and Path(name).is_dir():  # the empty path is the current folder
        return Path(name)
    repository = find_repository(name, list_repositories())
    folder = find_snapshot(repository)
    if folder is None:
        raise UserError(_explain_missing(name, repository))
    return folder


def _explain_missing(name: str, repository: str) -> str:
    pull = f"`firesteel pull {find_short_name(repository)}`"
    if snapshots := list_snapshots(repository):
        held = ", ".join(
            revision for snapshot in snapshots for revision in snapshot.revisions or [snapshot.commit[:7]]
        )
        return (
            f"{repository} is not in the local Hugging Face cache at its revision {MAIN}, only at {held}, perhaps "
            f"in part: {pull} fetches what is missing, or give the folder {snapshots[-1].folder}"
        )
    near = suggest(name, list_repositories())
    return (
        f"{repository} is not in the local Hugging Face cache and {name} is not a folder: "
        + (f"did you mean {near}? If not, " if near else "")
        + f"fetch it with {pull}, or give the checkpoint folder"
    )
