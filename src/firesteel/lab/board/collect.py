"""Finds all results below folders: result.json of runs, and cells of matrices that earlier versions measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from firesteel.config import hide_secrets
from firesteel.errors import UserError
from firesteel.lab.bench.public_models import find_public_name
from firesteel.lab.board.entry import BoardEntry, make_entry, take_figures
from firesteel.lab.codec import from_json
from firesteel.lab.matrix.matrix import CLAIM, read_file, read_outcome
from firesteel.lab.matrix.result import DONE, Matrix
from firesteel.lab.result import RESULT, read_result
from firesteel.lab.verdict import Verdict

REPORT = "report.html"
NOT_JUDGED = "kernel path not judged: a cell of an earlier version"


@dataclass(slots=True)
class Collection:
    entries: list[BoardEntry] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # file -> why
    without_speed: list[str] = field(default_factory=list)  # results of other verbs, and runs without level 4


def collect_results(folders: Sequence[Path]) -> Collection:
    found = Collection()
    for path in find_files(folders):
        name = show_path(path)
        try:
            if path.name == CLAIM:
                found.entries += read_cells(path)
            elif (entry := make_entry(name, read_result(path))) is not None:
                page = path.with_name(REPORT)
                found.entries.append(replace(entry, report=str(page) if page.exists() else ""))
            else:
                found.without_speed.append(name)
        except UserError as error:
            found.unreadable[name] = str(error).removeprefix(str(path)).lstrip(": ")
    return found


def show_path(path: Path) -> str:
    """Returns the path as seen from the working directory, if it is below that."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def find_files(folders: Sequence[Path]) -> list[Path]:
    """Returns the files of results below folders, or named themselves, each once and in order."""
    files: dict[Path, None] = {}
    for folder in folders:
        if not folder.exists():
            raise UserError(f"{folder} does not exist: name a folder with results of the lab, or a {RESULT}")
        found = [folder] if folder.is_file() else sorted(walk(folder))
        files |= dict.fromkeys(path.resolve() for path in found)
    return list(files)


def walk(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in (RESULT, CLAIM) if name in names)


def read_cells(claim: Path) -> Iterator[BoardEntry]:
    """Yields the measured cells of a matrix that are not runs with a result of their own."""
    matrix = from_json(Matrix, read_file(claim), "the matrix")
    for path in sorted(claim.parent.glob("*.json")):
        if path == claim or (path.with_suffix("") / RESULT).exists():
            continue
        outcome = read_outcome(path)
        if outcome is None or (outcome.bench is None and outcome.status == DONE):
            continue
        gates = [f"{name}={value}" for name, value in outcome.gates.items()]
        entry = BoardEntry(
            path=show_path(path),
            engine=matrix.engine,
            model=find_public_name(matrix.model) or matrix.model,
            device=outcome.device or "unknown GPU",
            settings=(*hide_secrets(matrix.flags), *gates),
            verdict=Verdict.UNPROVEN if outcome.status == DONE else Verdict.FAILED,
            fault=NOT_JUDGED if outcome.status == DONE else f"{outcome.status}: {outcome.reason}",
        )
        yield entry if outcome.bench is None else replace(entry, **take_figures(outcome.bench))
