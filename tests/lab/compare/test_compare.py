"""A planted slowdown is found, noise is not."""

import math
import random

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
    Change,
    compare,
    judge,
    smallest_visible_change,
)
from firesteel.lab.compare.interval import estimate
from firesteel.lab.compare.samples import BenchSamples, RunSamples, average_by_run, pool_samples, take_samples
from firesteel.lab.memory.gpu import OWN, WHOLE
from firesteel.lab.surroundings import StatedSurroundings, list_differences
from tests.lab import report_parts as parts
from tests.lab.mock import mock_server


def draw(source, speed, *, noise=0.01, count=5):
    return [speed * source.gauss(1.0, noise) for _ in range(count)]


def verdict(before, after, *, is_higher_better=True):
    return judge(*estimate(before, after), 0.03, is_higher_better=is_higher_better)


def verdict_shares(after_speed, *, trials=300, **settings):
    source = random.Random(1)
    verdicts = [
        verdict(draw(source, 100.0, **settings), draw(source, after_speed, **settings)) for _ in range(trials)
    ]
    return {name: verdicts.count(name) / trials for name in (SLOWER, FASTER, SAME, UNCLEAR)}


def test_slowdown_of_five_percent_is_found_through_noise_of_one():
    assert verdict_shares(95.0)[SLOWER] > 0.97


def test_noise_of_one_percent_is_not_a_slowdown():
    shares = verdict_shares(100.0)
    assert shares[SLOWER] == 0 and shares[FASTER] == 0 and shares[SAME] > 0.97


def test_one_percent_slower_is_below_the_threshold():
    assert verdict_shares(99.0)[SLOWER] < 0.03


def test_wide_noise_is_unclear_and_not_slower():
    source = random.Random(3)
    verdicts = [
        verdict(draw(source, 100.0, noise=0.2, count=3), draw(source, 100.0, noise=0.2, count=3))
        for _ in range(200)
    ]
    assert verdicts.count(SLOWER) < 0.05 * 200 and verdicts.count(UNCLEAR) > 0.5 * 200


def test_lower_is_better_for_latencies():
    assert verdict([100, 101, 99], [110, 111, 109], is_higher_better=False) == SLOWER
    assert verdict([100, 101, 99], [90, 91, 89], is_higher_better=False) == FASTER


def test_single_sample_is_unclear():
    assert verdict([100.0], [50.0]) == UNCLEAR


def concurrent_row(ttft_ms):
    row = parts.bench_row(concurrency=4)
    row["series"]["ttft_ms"] = parts.series("ttft_ms", ttft_ms)
    return parts.parse_bench(parts.bench([row])).rows[0]


def test_concurrent_requests_of_a_run_are_one_sample():
    """Twelve requests of three runs were taken for twelve samples, and drift between the runs for a gain."""
    row = concurrent_row([10.0] * 4 + [20.0] * 4 + [30.0] * 4)
    assert average_by_run(row, "ttft_ms") == [10.0, 20.0, 30.0]
    assert average_by_run(row, "tg_tok_s") == list(row.series["tg_tok_s"].values)
    assert average_by_run(concurrent_row([10.0, 20.0, 30.0]), "ttft_ms") == [20.0]  # a request is missing


def test_equal_runs_with_many_figures_seldom_differ():
    source = random.Random(5)

    def measure_figures():
        samples = [tuple(draw(source, 100.0, noise=0.2)) for _ in range(10)]
        figures = {
            (str(number), "tg_tok_s"): RunSamples(unit="tok/s", is_higher_better=True, median=100.0, runs=runs)
            for number, runs in enumerate(samples)
        }
        return BenchSamples(figures=figures, usage=None)

    slower = sum(bool(compare(measure_figures(), measure_figures()).regressions) for _ in range(200))
    assert slower / 200 < 0.06


def test_visible_change_grows_with_the_spread():
    source = random.Random(6)

    def visible(*rows):
        return smallest_visible_change(parts.parse_bench(parts.bench(list(rows))))

    calm, wild = (visible(parts.bench_row(draw(source, 100.0, noise=noise))) for noise in (0.005, 0.1))
    assert 0.0 < calm < wild
    assert visible(parts.bench_row([100.0])) is not None  # latencies have more samples
    assert visible() is None


def samples(speed, peak=2 << 30, **usage):
    rows = [parts.bench_row([speed * factor for factor in (0.999, 1.0, 1.001, 1.002, 0.998)])]
    content = parts.bench(rows, peak=peak)
    content["usage"] |= usage
    return take_samples(parts.parse_bench(content))


def test_results_are_compared_figure_by_figure():
    compared = compare(samples(400.0), samples(380.0))
    assert {row.figure for row in compared.regressions} == {"pp_tok_s", "tg_tok_s"}
    assert "-5.0 %" in compared.in_words() and compared.as_dict()["regressions"]
    assert not compare(samples(400.0), samples(396.0)).regressions
    assert compare(samples(400.0), samples(396.0), threshold=0.005).regressions


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.02, 0.031, "-2.0 to +3.1 %"),
        (-0.993, 10.0, "too few runs"),
        (-math.inf, math.inf, "too few runs"),
        (-0.9, 1.0, "-90.0 to +100.0 %"),
    ],
)
def test_interval_that_holds_every_change_reads_too_few_runs(low, high, words):
    """It read "-99.3 to +1000.0 %"."""
    change = Change(
        name="pp1 tg1", figure="tg_tok_s", unit="", before=1, after=1, change=0, low=low, high=high, verdict=SAME
    )
    assert change.interval == words and words in change.in_words()


def test_memory_counts_from_the_threshold():
    [row] = compare(samples(400.0), samples(400.0, peak=4 << 30)).regressions
    assert row.verdict == MORE_MEMORY and row.after - row.before == pytest.approx(2.147, rel=0.01)
    assert not compare(samples(400.0), samples(400.0, peak=4 << 30), memory_gb=3.0).regressions


def test_gpu_memory_is_compared_within_one_scope_only():
    def used(peak, scope=None):
        return samples(400.0, peak_gpu_bytes=peak, gpu_scope=scope)

    assert compare(used(2 << 30, OWN), used(9 << 30, OWN)).regressions
    assert compare(used(2 << 30), used(9 << 30, WHOLE)).regressions
    compared = compare(used(2 << 30), used(9 << 30, OWN))
    assert not compared.regressions and "GPU memory: of whole GPUs" in compared.differences[-1]


def test_differences_of_the_surroundings_are_listed():
    before = StatedSurroundings(device="CPU", versions={"torch": "2.13"})
    after = StatedSurroundings(device="NVIDIA H200", versions={"torch": "2.11"})
    lines = list_differences(before, after)
    assert lines == ["device: CPU before, NVIDIA H200 now", "version of torch: 2.13 before, 2.11 now"]
    assert compare(samples(400.0), samples(400.0), differences=lines).differences == lines
    assert list_differences(None, after) == []


def test_results_without_a_common_workload_are_refused():
    other = take_samples(parts.parse_bench(parts.bench([parts.bench_row(pp=77)])))
    with pytest.raises(UserError, match="no workload in common"):
        compare(samples(400.0), other)


def test_median_of_a_round_is_one_sample():
    slow, fast = (
        parts.bench([parts.bench_row(values)]) for values in ((100.0, 101.0, 99.0), (110.0, 111.0, 109.0))
    )
    fast["usage"]["peak_memory_bytes"] = 9 << 30
    pooled = pool_samples([parts.parse_bench(slow), parts.parse_bench(fast)])
    assert pooled.figures["pp512 tg32", "tg_tok_s"].runs == (100.0, 110.0)
    assert pooled.usage.peak_memory_bytes == 9 << 30


@pytest.mark.slow
def test_slower_server_is_found_and_the_same_server_is_not():
    plan = BenchPlan(pp=(256,), tg=(40,), depths=(0,), concurrency=(1,), cached_depths=(), runs=4, warmups=0)
    measured = []
    for speed in (50.0, 50.0, 46.0):
        with mock_server(pp_tok_s=500.0, tg_tok_s=speed) as url:
            measured.append(take_samples(measure(url, plan=plan)))
    assert not compare(measured[0], measured[1]).regressions
    assert {row.figure for row in compare(measured[0], measured[2]).regressions} == {"tg_tok_s", "tpot_ms"}
