"""Builds the context that a level runs in."""

from pathlib import Path

from firesteel.device import find_device
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.result import LabResult
from firesteel.lab.spec import LabSpec


def make_context(target=None, spec=None, *, folder=Path(), result=None, device=None, **fields):
    """On a CPU, with `--quick` and without earlier levels, unless told otherwise."""
    return LevelContext(
        spec=spec or LabSpec(quick=True),
        folder=folder,
        device=device or find_device("cpu"),
        on_progress=lambda words: None,
        result_so_far=lambda: result or LabResult(),
        running=target,
        **fields,
    )
