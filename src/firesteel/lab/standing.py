"""The rule by which a run is ranked beside others, the same for the cells of a matrix and for the board."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firesteel.lab.level import BENCHMARK, CORRECTNESS, KERNEL_PATH, MATRIX, REGRESSION
from firesteel.lab.level_result import LevelResult
from firesteel.lab.levels.coherence import COHERENCE
from firesteel.lab.verdict import Verdict

COMPARISONS = (REGRESSION, MATRIX)  # levels that do not judge this server
COHERENT_ONLY = "answers coherent, but not compared with a reference (--reference)"


class Standing(NamedTuple):
    verdict: Verdict  # passed: the run is ranked
    fault: str = ""  # why it is not ranked
    doubt: str = ""  # what a ranked run leaves open


def judge_standing(levels: Sequence[LevelResult]) -> Standing:
    """Judges whether a run is ranked.

    Nothing that judges this server may have failed, and its kernel path must be proven. Where its answers were
    asked for, they must be right, or at least coherent: that check needs no reference.
    """
    asked = {level.level: level for level in levels if level.level not in COMPARISONS}
    for level in asked.values():
        if level.failed:
            return Standing(Verdict.FAILED, explain(level))
        if not level.valid:
            words = f"{level.level.title} does not count: another kernel path than the requested one"
            return Standing(Verdict.FAILED, words)
    if KERNEL_PATH not in asked:
        return Standing(Verdict.UNPROVEN, f"{KERNEL_PATH.title} was not judged: level {KERNEL_PATH} was not run")
    doubt = ""
    for needed in (KERNEL_PATH, CORRECTNESS, BENCHMARK):
        if needed not in asked or asked[needed].passed:
            continue
        if not is_coherent(asked[needed]):
            return Standing(Verdict.UNPROVEN, explain(asked[needed]))
        doubt = COHERENT_ONLY
    return Standing(Verdict.PASSED, doubt=doubt)


def is_coherent(level: LevelResult) -> bool:
    """Returns True if the level looked at the answers and they were no garbage."""
    return any(check.check == COHERENCE and check.passed for check in level.checks)


def explain(level: LevelResult) -> str:
    reason = level.reason.removeprefix(f"{level.verdict.words}: ")
    return f"{level.level.title} {level.verdict.words}: {reason}"
