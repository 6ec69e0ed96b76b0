"""Checks the answers of a server with given flags by running level 2 in a child process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from firesteel.errors import UserError
from firesteel.lab.level import CORRECTNESS
from firesteel.lab.level_result import LevelResult
from firesteel.lab.matrix.result import Matrix
from firesteel.lab.matrix.review import AnswerVerdict, CheckAnswers
from firesteel.lab.result import read_result
from firesteel.lab.servers.shutdown import run_child


def check_by_level_two(matrix: Matrix) -> CheckAnswers:
    """Returns a check that runs `firesteel lab run --level 2 --quick`."""

    def check(flags: Sequence[str], folder: Path) -> AnswerVerdict:
        words = ["lab", "run", "--level", "2", "--quick", "--engine", matrix.engine, "--model", matrix.model]
        command = [sys.executable, "-m", "firesteel", *words, "--out", str(folder), "--", *flags]
        folder.mkdir(parents=True, exist_ok=True)
        run_child(command, folder / "check.log")
        try:
            return judge_level_two(read_result(folder).levels)
        except UserError as error:
            return AnswerVerdict(None, f"not compared: level 2 left no result in {folder}: {error}")

    return check


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
