"""What a level's result is, and when it counts."""

from firesteel.lab.level import MODES, TITLES, Checks, LevelResult, has_passed, judge_validity


def result(level, *, passed=True, was_run=True):
    return LevelResult(level=level, passed=passed, reason="so", was_run=was_run)


def test_failed_kernel_path_makes_later_results_invalid_and_no_earlier_one():
    judged = judge_validity([result("1"), result("1.5", passed=False), result("2"), result("4")])
    assert [one.valid for one in judged] == [True, True, False, False]
    assert not has_passed(judged)
    assert all(one.valid for one in judge_validity([result("1", passed=False), result("1.5"), result("4")]))


def test_kernel_path_that_nobody_judged_invalidates_nothing():
    judged = judge_validity([result("1.5", was_run=False), result("4")])
    assert [one.valid for one in judged] == [True, True] and has_passed(judged)


def test_valid_results_that_failed_do_not_pass():
    assert not has_passed([result("1"), result("2", passed=False)])


def test_checks_name_what_failed_and_else_what_was_seen():
    checks = Checks()
    checks.add("answer", True, "says Paris")
    checks.figures["seen"] = 3
    assert checks.result("1").reason == "says Paris" and checks.result("1", "all fine").reason == "all fine"
    checks.add("memory", False, "grew by 2000 MB")
    found = checks.result("1", "all fine")
    assert not found.passed and found.reason == "memory: grew by 2000 MB"
    assert found.figures["seen"] == 3 and len(found.figures["checks"]) == 2


def test_result_survives_its_dictionary():
    once = LevelResult(level="1.5", passed=False, valid=False, reason="so", seconds=2.0, figures={"a": 1})
    content = once.as_dict()
    assert content["title"] == "kernel path" and LevelResult.from_dict(content) == once


def test_every_mode_begins_with_smoke_and_the_gate_and_all_is_all():
    assert MODES["all"] == tuple(TITLES)
    assert all(levels[:2] == ("1", "1.5") for levels in MODES.values())
