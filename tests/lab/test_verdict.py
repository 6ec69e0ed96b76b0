"""Verdicts: what a whole is by its parts, exit codes, and what earlier versions wrote."""

import pytest

from firesteel.errors import UserError
from firesteel.exit_code import ExitCode
from firesteel.lab.verdict import Verdict, conclude, parse_verdict

PASSED, FAILED, UNPROVEN, NOT_APPLICABLE = Verdict


@pytest.mark.parametrize(
    ("verdicts", "with_all", "with_any"),
    [
        ([PASSED, PASSED], PASSED, PASSED),
        ([PASSED, UNPROVEN], UNPROVEN, PASSED),
        ([PASSED, UNPROVEN, FAILED], FAILED, FAILED),
        ([PASSED, NOT_APPLICABLE], PASSED, PASSED),
        ([UNPROVEN, NOT_APPLICABLE], UNPROVEN, UNPROVEN),
        ([NOT_APPLICABLE], NOT_APPLICABLE, NOT_APPLICABLE),
        ([], UNPROVEN, UNPROVEN),
    ],
)
def test_whole_passes_only_if_its_parts_were_judged(verdicts, with_all, with_any):
    assert conclude(verdicts, needs_all=True) is with_all
    assert conclude(verdicts, needs_all=False) is with_any


def test_only_a_passed_program_exits_with_0():
    assert [verdict.exit_code for verdict in Verdict] == [0, 1, 3, 3]
    assert {code.name: code.value for code in ExitCode} == {
        "PASSED": 0,
        "FAILED": 1,
        "USAGE": 2,
        "UNPROVEN": 3,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        ({"verdict": "not applicable", "passed": True}, NOT_APPLICABLE),
        ({"verdict": "unproven"}, UNPROVEN),
        ({"passed": True}, PASSED),
        ({"passed": True, "was_run": True}, PASSED),
        ({"passed": False, "was_run": True}, FAILED),
        ({"passed": True, "was_run": False}, UNPROVEN),
        ({"passed": False, "was_run": False}, UNPROVEN),
        ({}, FAILED),
    ],
)
def test_verdicts_of_earlier_versions_are_read(content, verdict):
    assert parse_verdict(content) is verdict


def test_unknown_verdict_is_refused_by_name():
    with pytest.raises(UserError, match="'maybe' is not a verdict of this version: it has passed, failed"):
        parse_verdict({"verdict": "maybe"})
