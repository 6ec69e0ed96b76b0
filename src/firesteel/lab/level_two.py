"""Checks the answers of a server with a gate on by running level 2 in a child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from firesteel.errors import UserError
from firesteel.lab.level import CORRECTNESS
from firesteel.lab.level_result import LevelResult
from firesteel.lab.matrix.cell import find_environment, make_cell
from firesteel.lab.matrix.matrix import CELL, run_process
from firesteel.lab.matrix.result import Matrix
from firesteel.lab.matrix.review import AnswerVerdict
from firesteel.lab.result import read_result


def check_by_level_two(matrix: Matrix, chosen: Mapping[str, str], folder: Path) -> AnswerVerdict:
    """Runs level 2 with a choice of gates, as a cell of that level alone."""
    cell = make_cell(replace(matrix, level=str(CORRECTNESS)), chosen)
    run_process(cell, find_environment(matrix, chosen), folder, CELL, timeout_s=matrix.cell_s)
    try:
        return judge_level_two(read_result(folder).levels)
    except UserError as error:
        return AnswerVerdict(None, f"not compared: level 2 left no result in {folder}: {error}")


def judge_level_two(levels: Sequence[LevelResult]) -> AnswerVerdict:
    """Judges the answers; they are not compared if the level was not judged, or ran on another path."""
    level = next((level for level in levels if level.level == CORRECTNESS), None)
    if level is None:
        return AnswerVerdict(None, "not compared: level 2 was not run")
    if not level.verdict.is_judged:
        return AnswerVerdict(None, f"not compared: {level.reason}")
    if not level.valid:
        return AnswerVerdict(None, f"not compared: the kernel path was not the requested one ({level.reason})")
    return AnswerVerdict(level.passed, level.reason)
