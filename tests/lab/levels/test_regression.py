"""Level 5: a first run, a baseline that is unfit, a run that is slower."""

import json

from firesteel.lab.levels.regression import check_regression
from firesteel.lab.spec import Order


def result(speed, *, is_valid=True):
    values = [speed * (1 + 0.001 * number) for number in range(8)]
    series = {"tg_tok_s": {"unit": "tok/s", "better": "higher", "values": values}}
    figures = {"bench": {"rows": [{"name": "pp128 tg32", "series": series}]}}
    levels = [{"level": "4", "passed": True, "valid": is_valid, "figures": figures}]
    return {"time_utc": "2026-11-15T12:00:00Z", "order": {}, "surroundings": {"device": "CPU"}, "levels": levels}


def judge(tmp_path, before, after, **fields):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(before))
    return check_regression(Order(baseline=str(path), **fields), after, tmp_path)


def test_first_run_is_kept_and_the_second_is_held_to_it(tmp_path):
    first = check_regression(Order(), result(100), tmp_path)
    assert first.passed and first.was_run and "first run" in first.reason and "baseline of the next" in first.reason
    assert 0.0 < first.figures["visible_change"] < 0.01
    assert check_regression(Order(), result(99.9), tmp_path).passed
    second = check_regression(Order(), result(90), tmp_path)
    assert not second.passed and "tg_tok_s: -10.0 %" in second.reason and "2026-11-15T12:00:00Z" in second.reason
    assert first.figures["baseline"] in second.reason  # what to remove where the change is wanted


def test_baseline_stays_the_first_run_so_that_small_losses_add_up(tmp_path):
    speeds = (100, 98, 96)
    assert [check_regression(Order(), result(speed), tmp_path).passed for speed in speeds] == [True, True, False]


def test_another_order_is_not_held_to_this_one(tmp_path):
    check_regression(Order(), result(100), tmp_path)
    assert "first run" in check_regression(Order(quick=True), result(50), tmp_path).reason


def test_benchmark_that_does_not_count_is_no_baseline_and_not_compared(tmp_path):
    found = check_regression(Order(), result(100, is_valid=False), tmp_path)
    assert not found.passed and not found.was_run and not (tmp_path / "baselines").exists()


def test_slower_than_before_fails_with_the_figure(tmp_path):
    found = judge(tmp_path, result(100), result(90))
    assert not found.passed and "tg_tok_s" in found.reason and found.figures["comparison"]["regressions"]
    assert judge(tmp_path, result(100), result(99.5)).passed


def test_thresholds_are_the_orders(tmp_path):
    assert judge(tmp_path, result(100), result(90), slower=15.0).passed
    assert not judge(tmp_path, result(100), result(98), slower=1.0).passed


def test_baseline_without_a_benchmark_fails_in_words(tmp_path):
    found = judge(tmp_path, {"levels": []}, result(100))
    assert not found.passed and "nothing to compare" in found.reason


def test_baseline_whose_kernel_path_failed_is_refused_with_its_reason(tmp_path):
    gate = {"level": "1.5", "passed": False, "valid": True, "reason": "kernels: marlin ran", "figures": {}}
    before = result(100, is_valid=False)
    before["levels"].insert(0, gate)
    found = judge(tmp_path, before, result(100))
    assert not found.passed and "marlin ran" in found.reason and "2026-11-15T12:00:00Z" in found.reason
