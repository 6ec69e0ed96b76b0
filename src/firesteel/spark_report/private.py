"""Removal of personal data from a report: secrets, home folders, temporary folders, and the machine's name."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import TypeVar

from firesteel.config import hide_in_text
from firesteel.measure.record import Record

SOURCE = Path(__file__).parents[2]  # folder that firesteel was installed or checked out into
HOME = re.compile(r"/(?:home|Users)/[^/\s\"':]+|/root(?=[/\s\"':]|$)")
SHORT_PARTS = 2  # of a path, the root included
SHORTEST_HOST = 4  # letters; a shorter name of a machine would hit ordinary words
COMMON_HOSTS = {"localhost", "spark", "dgx", "gx10", "ubuntu"}  # names that identify nobody
T = TypeVar("T")


def scrub(value: T, model: Path | None = None) -> T:
    """Removes personal data from all texts in a value.

    The paths of checkpoint, Python and firesteel are replaced too: they may lie outside of a home and name people.
    """
    if isinstance(value, str):
        return _scrub_text(value, model)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {scrub(key, model): scrub(item, model) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list | tuple):
        return type(value)(scrub(item, model) for item in value)
    return value


def scrub_record(record: Record, model: Path | None = None) -> Record:
    around = record.surroundings
    around = dataclasses.replace(
        around, environment=scrub(around.environment, model), command=scrub(around.command, model)
    )
    return dataclasses.replace(
        record,
        config=scrub(record.config, model),
        parameters=scrub(record.parameters, model),
        surroundings=around,
    )


def _scrub_text(text: str, model: Path | None) -> str:
    for folder, name in _list_folders(model):
        text = _replace_folder(text, folder, name)
    text = _replace_folder(_hide_home(hide_in_text(text)), tempfile.gettempdir(), "TMP")
    host = socket.gethostname().partition(".")[0]
    if len(host) < SHORTEST_HOST or host.lower() in COMMON_HOSTS:
        return text
    return re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "HOST", text)


def _list_folders(model: Path | None) -> list[tuple[str, str]]:
    """Returns folders with their substitutes, longest first, as given and with links resolved.

    The system shows a loaded library under its resolved path. Short ones, such as /usr, identify nobody.
    """
    named = [(Path(entry), "PYTHON") for entry in (sys.prefix, sys.base_prefix, *sys.path) if entry]
    named += [(SOURCE, "SOURCE"), *([(model, "MODEL")] if model else [])]
    folders = {str(path): name for folder, name in named for path in (folder, folder.resolve())}
    long = {folder: name for folder, name in folders.items() if len(Path(folder).parts) > SHORT_PARTS}
    return sorted(long.items(), key=lambda item: len(item[0]), reverse=True)


def _replace_folder(text: str, folder: str, name: str) -> str:
    """Replaces a folder's path, not that of another folder whose name begins in the same way."""
    return re.sub(rf"{re.escape(folder)}(?![\w.-])", name, text) if len(Path(folder).parts) > 1 else text


def _hide_home(text: str) -> str:
    """Replaces home folders by ~: usual places, and that of the user unless that is / or unknown."""
    home = Path("~")
    with contextlib.suppress(RuntimeError):
        home = Path.home()
    text = HOME.sub("~", text)
    return text.replace(str(home), "~") if len(home.parts) > 1 else text
