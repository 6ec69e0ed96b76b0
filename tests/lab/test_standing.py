"""A run is ranked if its kernel path is proven and its answers, where asked for, are no garbage."""

import pytest

from firesteel.lab.level import BENCHMARK, CORRECTNESS, KERNEL_PATH, REGRESSION
from firesteel.lab.level_result import LevelCheck, LevelResult
from firesteel.lab.levels.coherence import COHERENCE
from firesteel.lab.standing import COHERENT_ONLY, judge_standing
from firesteel.lab.verdict import Verdict

PASSED, FAILED, UNPROVEN = Verdict.PASSED, Verdict.FAILED, Verdict.UNPROVEN


def level(which, verdict=PASSED, coherent=None, **fields):
    checks = () if coherent is None else (LevelCheck(check=COHERENCE, verdict=coherent, words="x"),)
    return LevelResult(level=which, verdict=verdict, reason="why", checks=checks, **fields)


@pytest.mark.parametrize(
    ("answers", "verdict", "doubt"),
    [
        ([], PASSED, ""),
        ([level(CORRECTNESS)], PASSED, ""),
        ([level(CORRECTNESS, UNPROVEN, PASSED)], PASSED, COHERENT_ONLY),
        ([level(CORRECTNESS, UNPROVEN, UNPROVEN)], UNPROVEN, ""),
        ([level(CORRECTNESS, UNPROVEN)], UNPROVEN, ""),
        ([level(CORRECTNESS, FAILED, FAILED)], FAILED, ""),
        ([level(CORRECTNESS, FAILED, PASSED)], FAILED, ""),
        ([level(REGRESSION, FAILED)], PASSED, ""),
    ],
)
def test_answers_must_be_right_or_at_least_coherent(answers, verdict, doubt):
    standing = judge_standing([level(KERNEL_PATH), *answers, level(BENCHMARK)])
    assert (standing.verdict, standing.doubt) == (verdict, doubt)
    assert bool(standing.fault) is (verdict is not PASSED)


def test_coherent_answers_do_not_prove_the_kernel_path():
    levels = [level(KERNEL_PATH, UNPROVEN), level(CORRECTNESS, UNPROVEN, PASSED), level(BENCHMARK)]
    assert judge_standing(levels).fault == "kernel path not judged: why"
    assert "level 1.5 was not run" in judge_standing(levels[1:]).fault


def test_figures_of_another_path_do_not_count():
    assert "does not count" in judge_standing([level(KERNEL_PATH), level(BENCHMARK, valid=False)]).fault
