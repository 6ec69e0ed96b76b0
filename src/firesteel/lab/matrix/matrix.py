"""Measures the product of gates, each cell as a lab run in its own process; continues after an interruption.

A cell's outcome is a file that is complete or absent. A cell that has one is not measured again, whether it was
done or crashed. The cells of a folder belong to one matrix; another matrix in the same folder is refused. Each cell
states its commit and device, so that a matrix continued with others says so.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from firesteel.atomic import write_atomically
from firesteel.config import hide_secrets
from firesteel.errors import UserError
from firesteel.lab.codec import from_json, to_json
from firesteel.lab.matrix.cell import CellSpec, find_environment, make_cell
from firesteel.lab.matrix.gates import list_removed, name_choice
from firesteel.lab.matrix.result import (
    CRASHED,
    TOO_LONG,
    CellOutcome,
    Matrix,
    MatrixResult,
    Origin,
    hide_variables,
    list_other_origins,
    summarise,
)
from firesteel.lab.servers.shutdown import run_child

CELLS, CLAIM = "cells", "matrix.json"  # folder of cells, and the file in it with the matrix they belong to
SPEC, OUTCOME, LOG = "spec.json", "outcome.json", "cell.log"  # files of a cell under way
STACKS_S = 30.0  # for a cell to stop, beyond twice the grace of its server
TAIL = 2000  # characters of a crashed cell's output
MAX_NAME = 120  # characters of a file name
CELL = (sys.executable, "-m", "firesteel.lab.cell")
OnProgress = Callable[[str], None]


def run_matrix(
    matrix: Matrix,
    folder: Path,
    *,
    on_progress: OnProgress = print,
    command: Sequence[str] = CELL,
    again: bool = False,
) -> MatrixResult:
    """Measures all cells that have no outcome yet. `again` repeats those that have no rank."""
    folder.mkdir(parents=True, exist_ok=True)
    claim(matrix, folder)
    cells, origin = matrix.cells(), Origin.now()
    outcomes = read_known(cells, folder, again=again)
    if outcomes:
        mixed = list_other_origins(list(outcomes.values()), origin)
        words = f"{len(outcomes)} of {len(cells)} cells were measured before and are kept"
        on_progress("; ".join([words, *mixed]))
    for number, chosen in enumerate(cells):
        name = slug(chosen)
        if name not in outcomes:
            on_progress(f"cell {number + 1} of {len(cells)}: {name_choice(chosen)}")
            outcome = measure_cell(matrix, chosen, folder, command)
            outcomes[name] = replace(outcome, commit=origin.commit, device=origin.device)
            write_atomically(folder / f"{name}.json", outcomes[name].as_dict())
    return summarise(matrix, [outcomes[slug(chosen)] for chosen in cells], origin)


def read_known(cells: Sequence[Mapping[str, str]], folder: Path, *, again: bool) -> dict[str, CellOutcome]:
    """Returns the outcomes that are kept, by slug; `again` drops those of cells that have no rank."""
    outcomes = {slug(chosen): read_outcome(folder / f"{slug(chosen)}.json") for chosen in cells}
    return {name: outcome for name, outcome in outcomes.items() if outcome and not (again and outcome.unranked)}


def measure_cell(matrix: Matrix, chosen: Mapping[str, str], folder: Path, command: Sequence[str]) -> CellOutcome:
    place, start = folder / slug(chosen), time.monotonic()
    (place / OUTCOME).unlink(missing_ok=True)
    cell, environment = make_cell(matrix, chosen), find_environment(matrix, chosen)
    code = run_process(cell, environment, place, command, timeout_s=matrix.cell_s)
    if code is None:
        outcome = CellOutcome.failed(TOO_LONG, f"not done after {matrix.cell_s:.0f} s")
    else:
        crash = describe_crash(code, place / LOG)
        outcome = read_outcome(place / OUTCOME) or CellOutcome.failed(CRASHED, crash)
    return replace(
        outcome,
        gates=dict(chosen),
        flags=tuple(hide_secrets(cell.spec.flags)),
        environment=hide_variables(environment),
        folder=f"{folder.name}/{place.name}",
        seconds=time.monotonic() - start,
    )


def run_process(
    cell: CellSpec, environment: Mapping[str, str], place: Path, command: Sequence[str], *, timeout_s: float
) -> int | None:
    """Runs a cell in its own process, which is stopped whatever happens.

    Returns its exit code, or None if it exceeded `timeout_s`.
    """
    place.mkdir(parents=True, exist_ok=True)
    path = place / SPEC
    path.touch(mode=0o600)  # it holds API keys
    path.write_text(json.dumps(to_json(cell)), encoding="utf-8")
    return run_child(
        [*command, str(path)],
        place / LOG,
        timeout_s=timeout_s,
        grace_s=2 * cell.spec.grace_s + STACKS_S,
        environment=environment,
        without=list_removed(cell.chosen),
    )


def describe_crash(code: int, log: Path) -> str:
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    tail = log.read_text(encoding="utf-8", errors="replace")[-TAIL:].strip().splitlines()
    return f"{how}: {tail[-1]}" if tail else how


def claim(matrix: Matrix, folder: Path) -> None:
    """Marks the folder as this matrix's, or raises if it is another's."""
    path = folder / CLAIM
    content = read_file(path)
    ours = from_json(Matrix, json.loads(json.dumps(matrix.as_dict())), "the matrix")
    if content is None:
        write_atomically(path, matrix.as_dict())
    elif from_json(Matrix, content, str(path)) != ours:
        raise UserError(f"{folder} holds another matrix: choose another --out, or delete that folder")


def read_outcome(path: Path) -> CellOutcome | None:
    content = read_file(path)
    return None if content is None else from_json(CellOutcome, content, str(path))


def read_file(path: Path) -> Any:
    """Returns the parsed JSON, or None if there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete it to measure that cell again") from error


def slug(chosen: Mapping[str, str]) -> str:
    """Returns a file name, with a hash if characters had to be replaced, so that no two cells share one."""
    words = ",".join(f"{name}={value}" for name, value in chosen.items())
    safe = re.sub(r"[^\w=.,-]+", "-", words)[:MAX_NAME]
    return safe if safe == words else f"{safe}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
