"""Writes the crash bundle of a dead process: a folder with its cause, state and last log lines.

`report.json` holds the cause and the state, `log.txt` the last lines that the process wrote. Secrets are masked: in
the state by their names and by the addresses and headers that hold them, in texts wherever one of those values
occurs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firesteel.config import HIDDEN, find_in_text, hide_in_text, is_secret

REPORT = "report.json"
LOG = "log.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """The contents of report.json; all values can be represented in JSON."""

    cause: str  # "SIGKILL", "RuntimeError: ..."
    log_tail: Sequence[str] = ()
    command: Sequence[str] = ()  # of the parent process
    config: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)  # what was derived from the settings at start
    ledger: Sequence[Mapping[str, Any]] = ()  # as last received
    last_plan: Sequence[Mapping[str, Any]] = ()  # what was being computed
    in_flight: Sequence[str] = ()  # requests that failed with it
    surroundings: Mapping[str, Any] = field(default_factory=dict)


def write_bundle(folder: Path, report: CrashReport) -> Path:
    """Creates a new folder within `folder`, complete or not at all; only its owner may enter it."""
    now = datetime.now(UTC)
    content = {"time_utc": now.strftime("%Y-%m-%dT%H:%M:%SZ"), **asdict(report)}
    lines = content.pop("log_tail")
    secrets = sorted(set(find_secrets(content)), key=len, reverse=True)
    log = "".join(f"{_clean(line, secrets)}\n" for line in lines)
    text = json.dumps(_masked(content, secrets), indent=2, default=str) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder, prefix=".unfinished-"))
    try:
        (unfinished / REPORT).write_text(text, encoding="utf-8")
        (unfinished / LOG).write_text(log, encoding="utf-8")
        return _rename(unfinished, folder / now.strftime("crash-%Y%m%dT%H%M%SZ"))
    except OSError:
        shutil.rmtree(unfinished)
        raise


def find_secrets(value: Any) -> Iterator[str]:
    """Yields the texts under names of secrets and the secrets in other texts, at any depth."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if is_secret(str(name)):
                yield from _texts(inner)
            else:
                yield from find_secrets(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from find_secrets(inner)
    elif isinstance(value, str):
        yield from find_in_text(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value and value != HIDDEN:
        yield value
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _masked(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            str(name): HIDDEN if is_secret(str(name)) and inner else _masked(inner, secrets)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(inner, secrets) for inner in value]
    return _clean(value, secrets) if isinstance(value, str) else value


def _clean(text: str, secrets: Sequence[str]) -> str:
    text = re.sub("|".join(map(re.escape, secrets)), HIDDEN, text) if secrets else text
    return hide_in_text(text)


def _rename(unfinished: Path, wanted: Path) -> Path:
    """Renames to `wanted`, with a number appended if a crash of the same second has that name."""
    number = 1
    while True:
        target = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        number += 1
        if not target.exists():
            os.rename(unfinished, target)
            return target
