"""Finds a draft model: by path, by name in the Hugging Face cache, or the one built in for the built-in model."""

from __future__ import annotations

from pathlib import Path

from firesteel.errors import UserError
from firesteel.hub.checkpoint import find_checkpoint
from firesteel.hub.names import BUILT_IN

WITHOUT = ("off", "ngram")  # kinds of drafts that need no model; settings that name one beside them are refused


def find_draft_model(kind: str, name: str, directory: Path) -> str:
    """Returns the folder of the draft model `name` for the model in `directory`; "" if `kind` needs none."""
    if kind in WITHOUT:
        return ""
    if name:
        return str(find_checkpoint(name))
    if kind == "auto":
        return ""  # drafts are copies
    if directory != BUILT_IN:
        raise UserError(
            f"--speculate {kind} needs a draft model for {directory.name}: give --draft-model FOLDER or NAME, or "
            "--speculate ngram, which needs none"
        )
    return str(BUILT_IN.with_name(f"{BUILT_IN.name}_{kind}"))
