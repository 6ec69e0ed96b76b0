"""Finds the draft model that the settings ask for: by path, by name in the Hugging Face cache, or built in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firesteel.config import Config
from firesteel.errors import UserError
from firesteel.hub.checkpoint import find_checkpoint
from firesteel.hub.names import BUILT_IN

WITHOUT = ("off", "ngram")  # kinds of drafts that need no model


def settle_draft_model(config: Config, directory: Path) -> Config:
    """Returns the settings with the draft model's folder in place of its name, for the model in `directory`."""
    asked, name = config.speculate.speculate, config.speculate.draft_model
    if asked in WITHOUT:
        if name:
            raise UserError(
                f"--draft-model {name}: --speculate {asked} drafts without a model: use --speculate auto"
            )
        return config
    folder = find_checkpoint(name) if name else _find_built_in(asked, directory)
    return replace(config, speculate=replace(config.speculate, draft_model=str(folder or "")))


def _find_built_in(kind: str, directory: Path) -> Path | None:
    """Returns the built-in draft model of the built-in model; None if drafts are to be copies."""
    if kind == "auto":
        return None
    if directory != BUILT_IN:
        raise UserError(
            f"--speculate {kind} needs a draft model for {directory.name}: give --draft-model FOLDER or NAME, or "
            "--speculate ngram, which needs none"
        )
    return BUILT_IN.with_name(f"{BUILT_IN.name}_{kind}")
