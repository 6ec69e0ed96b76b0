"""Level 5: a baseline that is missing, unfit, or faster."""

import json

from firesteel.lab.levels_regression import check_regression
from firesteel.lab.order import Order


def result(speed):
    values = [speed * (1 + 0.001 * number) for number in range(8)]
    series = {"tg_tok_s": {"unit": "tok/s", "better": "higher", "values": values}}
    figures = {"bench": {"rows": [{"name": "pp128 tg32", "series": series}]}}
    return {"levels": [{"level": "4", "passed": True, "figures": figures}]}


def judge(tmp_path, before, after):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(before))
    return check_regression(Order(baseline=str(path)), after)


def test_without_a_baseline_nothing_is_judged():
    found = check_regression(Order(), result(100))
    assert found.passed and not found.was_run and "--baseline" in found.reason


def test_slower_than_before_fails_with_the_figure(tmp_path):
    found = judge(tmp_path, result(100), result(90))
    assert not found.passed and "tg_tok_s" in found.reason and found.figures["comparison"]["regressions"]
    assert judge(tmp_path, result(100), result(99.5)).passed


def test_baseline_without_a_benchmark_fails_in_words(tmp_path):
    found = judge(tmp_path, {"levels": []}, result(100))
    assert not found.passed and "nothing to compare" in found.reason
