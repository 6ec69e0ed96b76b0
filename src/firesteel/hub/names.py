"""Names of models: the built-in one, short names of published ones, and repositories of the hub."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from firesteel.errors import UserError

BUILT_IN = Path(__file__).parents[1] / "kindling"  # the small model that ships with the package
SHORT_NAMES = {"gpt-oss-120b": "openai/gpt-oss-120b", "gpt-oss-20b": "openai/gpt-oss-20b"}
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
NEAR = 0.75  # similarity by difflib from which a name may be a misspelling of another


def find_repository(name: str, others: Iterable[str] = ()) -> str:
    """Returns the repository that a name means; `others` are names to suggest beside the published ones."""
    repository = SHORT_NAMES.get(name, name)
    if REPOSITORY.fullmatch(repository):
        return repository
    known = ", ".join([*SHORT_NAMES, BUILT_IN.name])
    message = f"{name or 'the empty name'} is not a folder or a name like openai/gpt-oss-20b (short names: {known})"
    near = suggest(name, others)
    raise UserError(f"{message}; did you mean {near}?" if near else message)


def find_short_name(repository: str) -> str:
    """Returns the shortest name of a repository."""
    return next((short for short, whole in SHORT_NAMES.items() if whole == repository), repository)


def suggest(name: str, others: Iterable[str] = ()) -> str:
    """Returns the known name that `name` may be a misspelling of; an empty text if it is known or far from all."""
    known = (*SHORT_NAMES, BUILT_IN.name, *SHORT_NAMES.values(), *others)
    if name in known:
        return ""
    folded = {_fold(text): text for text in reversed(known)}  # of equal ones, the first
    near = difflib.get_close_matches(_fold(name), folded, n=1, cutoff=NEAR)
    return folded[near[0]] if near else ""


def _fold(name: str) -> str:
    """Returns a name without what people leave out or replace: case, and signs between words."""
    return re.sub(r"[^a-z0-9/]", "", name.lower())
