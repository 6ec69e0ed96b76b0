"""Earlier runs: each result keeps the key figures of those before it in the same folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from firesteel.errors import UserError
from firesteel.lab.compare.key_figures import pick_key_figures
from firesteel.lab.compare.past_run import PastRun
from firesteel.lab.result import RESULT, LabResult, read_result
from firesteel.lab.spec import LabSpec, identity

MAX_RUNS = 30


def find_history(folder: Path) -> tuple[PastRun, ...]:
    """Returns the earlier runs, oldest first, from the result that a new run in this folder will replace."""
    if not (folder / RESULT).exists():
        return ()
    try:
        before = read_result(folder)
    except UserError as error:
        raise UserError(
            f"a run in {folder} would replace a result that cannot be read: {error}; move it, or name another --out"
        ) from error
    return (*before.history, *remember(before))[-MAX_RUNS:]


def list_comparable(result: LabResult) -> list[PastRun]:
    """Returns the earlier runs with the settings and the device of this result, oldest first."""
    settings = [run.settings for run in remember(result)]
    return [run for run in result.history if run.settings in settings]


def remember(result: LabResult) -> list[PastRun]:
    """Returns what later results keep of this one; empty if it holds no benchmark that counts."""
    if result.spec is None or not result.has_counted_bench:
        return []
    device = "" if result.surroundings is None else result.surroundings.device or ""
    figures = pick_key_figures(result.counted_bench())
    run = PastRun(
        settings=hash_settings(result.spec, device),
        time_utc=result.time_utc,
        engine=result.release,
        figures={figure.name: figure.samples for figure in figures},
    )
    return [run]


def hash_settings(spec: LabSpec, device: str) -> str:
    """Returns a short hash of what decides whether two runs can be compared."""
    key = [*identity(spec), device]
    return hashlib.sha256(json.dumps(key, default=list).encode()).hexdigest()[:8]
