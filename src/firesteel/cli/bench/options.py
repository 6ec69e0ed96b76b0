"""The verb `bench`: the group of its commands, and the options that several of them share."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from firesteel.cli.choices import MODELS
from firesteel.cli.group import make_group
from firesteel.errors import UserError

bench = make_group("bench", help="Time ops against a ceiling measured in the same run, or the engine.")

RECORDS = Path("firesteel-bench")
Synthetic = Annotated[str | None, typer.Option(help="random weights of " + " or ".join(MODELS))]
Out = Annotated[Path, typer.Option(help="folder for records")]
OutAndPlot = Annotated[Path, typer.Option("--out", help="folder for records and the plot")]


def check_folder(folder: Path) -> None:
    """Makes the folder; raises unless files can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"--out {folder}: cannot write there: {error.strerror}; name a folder that you may write to"
        ) from error


def parse_numbers(flag: str, text: str, least: int, most: int | None) -> tuple[int, ...]:
    """Parses comma-separated numbers and drops repeated ones."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit()) or int(word) < least or (most is not None and int(word) > most):
            limits = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise UserError(f"{flag} {text}: expected comma-separated numbers {limits}, got {word!r}")
    return tuple(dict.fromkeys(map(int, words)))


def parse_shares(flag: str, text: str) -> tuple[float, ...]:
    """Parses comma-separated numbers from 0 to 1 and drops repeated ones."""
    shares = []
    for word in text.split(","):
        try:
            share = float(word)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise UserError(f"{flag} {text}: expected comma-separated numbers from 0 to 1, got {word.strip()!r}")
        shares.append(share)
    return tuple(dict.fromkeys(shares))
