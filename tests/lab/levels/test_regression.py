"""Level 5: a first run, an unfit baseline, a slower run."""

import json

import pytest

from firesteel.lab.levels.regression import check_regression
from firesteel.lab.result import parse_result
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab.contexts import make_context


def result(speed, *, is_valid=True, spread=0.001):
    values = [speed * (1 + spread * number) for number in range(8)]
    series = {"tg_tok_s": {"unit": "tok/s", "better": "higher", "values": values}}
    figures = {"bench": {"rows": [{"workload": {"pp": 128, "tg": 32}, "series": series}]}}
    levels = [{"level": "4", "passed": True, "valid": is_valid, "figures": figures}]
    return {"time_utc": "2026-11-15T12:00:00Z", "order": {}, "surroundings": {"device": "CPU"}, "levels": levels}


def check(spec, content, folder):
    return check_regression(make_context(spec=spec, result=parse_result(content), folder=folder))


def judge(tmp_path, before, after, **fields):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(before))
    return check(LabSpec(baseline=str(path), **fields), after, tmp_path)


def test_first_run_is_kept_and_the_second_is_compared_with_it(tmp_path):
    first = check(LabSpec(), result(100), tmp_path)
    assert (
        first.verdict is Verdict.NOT_APPLICABLE
        and "first run" in first.reason
        and "baseline of later" in first.reason
    )
    assert 0.0 < first.facts["visible_change"] < 0.01
    assert check(LabSpec(), result(99.9), tmp_path).passed
    second = check(LabSpec(), result(90), tmp_path)
    assert not second.passed and "tg_tok_s: -10.0 %" in second.reason and "2026-11-15T12:00:00Z" in second.reason
    assert f"remove {first.facts['baseline']}" in second.reason


def test_baseline_stays_the_first_run_so_that_small_losses_add_up(tmp_path):
    verdicts = [check(LabSpec(), result(speed), tmp_path).verdict for speed in (100, 98, 96)]
    assert verdicts == [Verdict.NOT_APPLICABLE, Verdict.PASSED, Verdict.FAILED]


def test_other_settings_have_another_baseline(tmp_path):
    check(LabSpec(), result(100), tmp_path)
    assert "first run" in check(LabSpec(quick=True), result(50), tmp_path).reason


def test_invalid_benchmark_is_neither_kept_nor_compared(tmp_path):
    judged = check(LabSpec(), result(100, is_valid=False), tmp_path)
    assert judged.verdict is Verdict.UNPROVEN and not (tmp_path / "baselines").exists()


def test_slower_run_fails_with_the_figure(tmp_path):
    judged = judge(tmp_path, result(100), result(90))
    assert not judged.passed and "tg_tok_s" in judged.reason and judged.comparison.regressions
    assert judge(tmp_path, result(100), result(99.5)).passed


def test_thresholds_are_those_of_the_settings(tmp_path):
    assert judge(tmp_path, result(100), result(90), slower=15.0).passed
    assert not judge(tmp_path, result(100), result(98), slower=1.0).passed


@pytest.mark.parametrize(
    ("spread", "verdict"), [(0.01, Verdict.PASSED), (0.05, Verdict.UNPROVEN), (0.5, Verdict.UNPROVEN)]
)
def test_noise_of_twice_the_threshold_leaves_the_level_unjudged(tmp_path, spread, verdict):
    """It passed with "a change of 47 % would show"."""
    noisy = result(100, spread=spread)
    judged = judge(tmp_path, noisy, noisy)
    assert judged.verdict is verdict and ("cannot show a change of 3 %" in judged.reason) == (spread > 0.01)
    assert ("on an idle machine" in judged.reason) == (spread > 0.01)


def test_loss_beyond_the_noise_fails_even_if_the_runs_are_noisy(tmp_path):
    noisy = [result(speed, spread=0.05) for speed in (100, 40)]
    assert judge(tmp_path, *noisy).failed


def test_baseline_without_a_benchmark_fails_with_the_reason(tmp_path):
    judged = judge(tmp_path, {"levels": []}, result(100))
    assert not judged.passed and "nothing to compare" in judged.reason


def test_baseline_with_a_failed_kernel_path_is_refused_with_its_reason(tmp_path):
    path = {"level": "1.5", "passed": False, "valid": True, "reason": "kernels: marlin ran", "figures": {}}
    before = result(100, is_valid=False)
    before["levels"].insert(0, path)
    judged = judge(tmp_path, before, result(100))
    assert not judged.passed and "marlin ran" in judged.reason and "2026-11-15T12:00:00Z" in judged.reason
