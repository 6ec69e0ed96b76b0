"""The command that repeats a run, to be copied from its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firesteel.errors import UserError
from firesteel.lab.rerun import Rerun, find_settings, find_words, make_files
from firesteel.lab.result import RESULT, LabResult
from firesteel.lab.spec import parse_spec

OUT = Path("firesteel-rerun")


def make_command(result: LabResult) -> str:
    """Returns the command with the variables that were set; empty if the result does not hold its settings.

    A command that reads files, such as the gates of a matrix, is left to `lab rerun`, which writes them.
    """
    if make_files(result, OUT):
        return Rerun(words=("lab", "rerun", RESULT), environment={}, without=(), differences=[]).in_shell()
    if result.spec is not None:
        result = replace(result, spec=parse_spec(result.spec.as_dict())[0])  # as result.json has it: secrets hidden
    environment = None if result.surroundings is None else result.surroundings.environment
    try:
        words = find_words(result, OUT)
    except UserError:
        return ""
    return Rerun(words=words, environment=find_settings(environment or {}), without=(), differences=[]).in_shell()
