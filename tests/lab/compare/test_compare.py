"""A planted slowdown is found, noise is not."""

import importlib.util
import random
from pathlib import Path

import pytest

from firesteel.errors import UserError
from firesteel.lab.bench.bench import measure
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.compare.compare import (
    FASTER,
    MORE_MEMORY,
    SAME,
    SLOWER,
    UNCLEAR,
    by_run,
    compare,
    find_visible,
    judge,
)
from firesteel.lab.compare.interval import estimate
from firesteel.lab.memory.gpu import OWN, WHOLE
from tests.lab.mock import mock_server

spec = importlib.util.spec_from_file_location("report_parts", Path(__file__).parents[1] / "report_parts.py")
parts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(parts)


def draw(source, speed, *, noise=0.01, count=5):
    return [speed * source.gauss(1.0, noise) for _ in range(count)]


def verdict(before, after, *, is_higher_better=True):
    return judge(*estimate(before, after), 0.03, is_higher_better=is_higher_better)


def shares(after_speed, *, trials=300, **settings):
    source = random.Random(1)
    found = [verdict(draw(source, 100.0, **settings), draw(source, after_speed, **settings)) for _ in range(trials)]
    return {one: found.count(one) / trials for one in (SLOWER, FASTER, SAME, UNCLEAR)}


def test_a_slowdown_of_five_percent_is_found_through_noise_of_one():
    assert shares(95.0)[SLOWER] > 0.97


def test_noise_of_one_percent_is_no_slowdown():
    found = shares(100.0)
    assert found[SLOWER] == 0 and found[FASTER] == 0 and found[SAME] > 0.97


def test_one_percent_slower_is_below_the_threshold():
    assert shares(99.0)[SLOWER] < 0.03


def test_wide_noise_is_unclear_and_not_slower():
    source = random.Random(3)
    found = [
        verdict(draw(source, 100.0, noise=0.2, count=3), draw(source, 100.0, noise=0.2, count=3))
        for _ in range(200)
    ]
    assert found.count(SLOWER) < 0.05 * 200 and found.count(UNCLEAR) > 0.5 * 200


def test_lower_is_better_for_latencies():
    assert verdict([100, 101, 99], [110, 111, 109], is_higher_better=False) == SLOWER
    assert verdict([100, 101, 99], [90, 91, 89], is_higher_better=False) == FASTER


def test_one_sample_says_nothing():
    assert verdict([100.0], [50.0]) == UNCLEAR


def crowd_row(ttft_ms):
    row = parts.bench_row(concurrency=4)
    row["series"]["ttft_ms"] = parts.series("ttft_ms", ttft_ms)
    return row


def test_requests_of_one_crowd_are_one_sample():
    """Twelve requests of three runs were taken for twelve samples, and drift between the runs for a gain."""
    row = crowd_row([10.0] * 4 + [20.0] * 4 + [30.0] * 4)
    assert by_run(row, "ttft_ms") == [10.0, 20.0, 30.0]
    assert by_run(row, "tg_tok_s") == row["series"]["tg_tok_s"]["values"]
    assert by_run(crowd_row([10.0, 20.0, 30.0]), "ttft_ms") == [20.0]  # a request is missing


def test_equals_with_many_figures_are_seldom_told_apart():
    source = random.Random(5)

    def measured():
        drawn = [parts.series("tg_tok_s", draw(source, 100.0, noise=0.2)) for _ in range(10)]
        return {"rows": [{"name": str(number), "series": {"tg_tok_s": one}} for number, one in enumerate(drawn)]}

    slower = sum(bool(compare(measured(), measured()).regressions) for _ in range(200))
    assert slower / 200 < 0.06


def test_visible_change_grows_with_the_spread():
    source = random.Random(6)
    calm, wild = ({"rows": [parts.bench_row(draw(source, 100.0, noise=noise))]} for noise in (0.005, 0.1))
    assert 0.0 < find_visible(calm) < find_visible(wild)
    assert find_visible({"rows": [parts.bench_row([100.0])]}) is not None  # latencies have more samples
    assert find_visible({"rows": []}) is None


def result(speed, peak=2 << 30, **surroundings):
    rows = [parts.bench_row([speed * one for one in (0.999, 1.0, 1.001, 1.002, 0.998)])]
    return {
        "levels": [parts.level("4", bench=parts.bench(rows, peak=peak))],
        "surroundings": {"device": "CPU", "versions": {"torch": "2.13"}, **surroundings},
    }


def test_results_are_compared_figure_by_figure():
    found = compare(result(400.0), result(380.0))
    assert {row.figure for row in found.regressions} == {"pp_tok_s", "tg_tok_s"}
    assert "-5.0 %" in found.in_words() and found.as_dict()["regressions"]
    assert not compare(result(400.0), result(396.0)).regressions
    assert compare(result(400.0), result(396.0), threshold=0.005).regressions


def test_memory_counts_from_the_threshold():
    [row] = compare(result(400.0), result(400.0, peak=4 << 30)).regressions
    assert row.verdict == MORE_MEMORY and row.after - row.before == pytest.approx(2.147, rel=0.01)
    assert not compare(result(400.0), result(400.0, peak=4 << 30), memory_gb=3.0).regressions


def test_gpu_memory_is_compared_only_with_that_of_the_same_users():
    def used(peak, scope=None):
        made = result(400.0)
        made["levels"][0]["figures"]["bench"]["usage"] |= {"peak_gpu_bytes": peak, "gpu_scope": scope}
        return made

    assert compare(used(2 << 30, OWN), used(9 << 30, OWN)).regressions
    assert compare(used(2 << 30), used(9 << 30, WHOLE)).regressions
    found = compare(used(2 << 30), used(9 << 30, OWN))
    assert not found.regressions and "memory of the GPU: of whole GPUs" in found.differences[-1]


def test_what_differs_around_is_said():
    found = compare(result(400.0), result(400.0, device="NVIDIA H200", versions={"torch": "2.11"}))
    assert any("CPU before, NVIDIA H200 now" in line for line in found.differences)
    assert any("torch" in line for line in found.differences)


def test_results_without_a_common_workload_are_refused():
    other = parts.bench([parts.bench_row(pp=77)])
    with pytest.raises(UserError, match="share no workload"):
        compare(parts.bench([parts.bench_row()]), other)
    with pytest.raises(UserError, match="no benchmark"):
        compare({"levels": [parts.level("1")]}, other)


@pytest.mark.parametrize("is_before", [True, False])
def test_run_whose_kernel_path_failed_is_refused_with_its_name_and_reason(is_before):
    bad = result(400.0) | {"order": {"engine": "vllm", "model": "gpt-oss-20b"}, "time_utc": "2026-11-15T12:00:00Z"}
    bad["levels"] = [
        parts.level("1.5", passed=False, reason="kernels: marlin ran"), {**bad["levels"][0], "valid": False}
    ]  # fmt: skip
    pair = (bad, result(400.0)) if is_before else (result(400.0), bad)
    with pytest.raises(UserError, match=r"vllm, gpt-oss-20b, 2026-11-15T12:00:00Z .* marlin ran; measure it again"):
        compare(*pair)


def test_run_whose_kernel_path_was_not_judged_is_compared():
    whole = result(400.0)
    whole["levels"].insert(0, parts.level("1.5", was_run=False))
    assert compare(whole, whole).rows


@pytest.mark.slow
def test_a_slower_server_is_found_and_the_same_server_is_not():
    plan = BenchPlan(pp=(256,), tg=(40,), depths=(0,), concurrency=(1,), cached_depths=(), runs=4, warmups=0)
    measured = []
    for speed in (50.0, 50.0, 46.0):
        with mock_server(pp_tok_s=500.0, tg_tok_s=speed) as url:
            measured.append(measure(url, plan=plan).as_dict())
    assert not compare(measured[0], measured[1]).regressions
    assert {row.figure for row in compare(measured[0], measured[2]).regressions} == {"tg_tok_s", "tpot_ms"}
