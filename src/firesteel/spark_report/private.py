"""Removal of personal data from a report: secrets, home folders, temporary folders, and the machine's name."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import tempfile
from pathlib import Path
from typing import TypeVar

from firesteel.config import hide_in_text
from firesteel.measure.record import Record

HOME = re.compile(r"/(?:home|Users)/[^/\s\"':]+|/root(?=[/\s\"':]|$)")
SHORTEST_HOST = 4  # letters; a shorter name of a machine would hit ordinary words
COMMON_HOSTS = {"localhost", "spark", "dgx", "gx10", "ubuntu"}  # names that identify nobody
T = TypeVar("T")


def scrub(value: T, model: Path | None = None) -> T:
    """Removes personal data from all texts in a value.

    The path of the checkpoint becomes MODEL, because it may lie outside of the home folder and name people.
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
    text = text if model is None else text.replace(str(model), "MODEL")
    text = _hide_home(hide_in_text(text)).replace(tempfile.gettempdir(), "TMP")
    host = socket.gethostname().partition(".")[0]
    if len(host) < SHORTEST_HOST or host.lower() in COMMON_HOSTS:
        return text
    return re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "HOST", text)


def _hide_home(text: str) -> str:
    """Replaces home folders by ~: usual places, and that of the user unless that is / or unknown."""
    home = Path("~")
    with contextlib.suppress(RuntimeError):
        home = Path.home()
    text = HOME.sub("~", text)
    return text.replace(str(home), "~") if len(home.parts) > 1 else text
