"""The workload that stands for a benchmark."""

import pytest

from firesteel.lab.bench.headline import find_headline, list_depths
from tests.lab import report_parts as parts


def bench_of(*workloads):
    """A benchmark of (pp, tg, depth, streams)."""
    rows = []
    for pp, tg, depth, streams in workloads:
        row = parts.bench_row(pp=pp, depth=depth, concurrency=streams)
        rows.append({**row, "workload": {**row["workload"], "tg": tg}})
    return parts.parse_bench(parts.bench(rows))


@pytest.mark.parametrize(
    ("workloads", "name"),
    [
        ([(512, 32, 0, 1), (2048, 32, 0, 1), (2048, 128, 0, 1)], "pp2048 tg32"),
        ([(128, 32, 0, 1), (512, 32, 0, 1)], "pp512 tg32"),
        ([(2048, 128, 0, 1), (512, 32, 0, 1)], "pp512 tg32"),
        ([(2048, 32, 4096, 1), (64, 8, 0, 1)], "pp64 tg8"),
        ([(2048, 32, 0, 8), (64, 8, 0, 1)], "pp64 tg8"),
    ],
)
def test_headline_is_one_stream_without_a_context_and_closest_to_pp2048_tg32(workloads, name):
    assert find_headline(bench_of(*workloads)).name == name


def test_benchmark_of_several_streams_only_has_no_headline():
    assert find_headline(bench_of((2048, 32, 0, 4))) is None


def test_depths_are_those_with_the_lengths_of_the_headline():
    bench = bench_of((2048, 32, 4096, 1), (2048, 32, 0, 1), (512, 32, 8192, 1))
    assert list(list_depths(bench, find_headline(bench))) == [0, 4096]
