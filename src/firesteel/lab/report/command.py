"""The command that repeats a run, to be copied from its report."""

from __future__ import annotations

from pathlib import Path

from firesteel.errors import UserError
from firesteel.lab.rerun import Rerun, find_settings, find_words, make_files
from firesteel.lab.result import RESULT, LabResult

OUT = Path("firesteel-rerun")


def make_command(result: LabResult) -> str:
    """Returns the command with the variables that were set; empty if the result does not hold its settings.

    A command that reads files, such as the gates of a matrix, is left to `lab rerun`, which writes them.
    """
    if make_files(result, OUT):
        return Rerun(words=("lab", "rerun", RESULT), environment={}, without=(), differences=[]).in_shell()
    environment = None if result.surroundings is None else result.surroundings.environment
    try:
        words = find_words(result, OUT)
    except UserError:
        return ""
    return Rerun(words=words, environment=find_settings(environment or {}), without=(), differences=[]).in_shell()
