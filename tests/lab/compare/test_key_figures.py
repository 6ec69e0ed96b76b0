"""The figures that stand for a benchmark are those closest to pp2048 and tg32, of one stream without context."""

import pytest

from firesteel.lab.compare.key_figures import compare_key_figures, pick_key_figures
from tests.lab.report_parts import bench, bench_row, parse_bench


def row(pp, tg, **more):
    content = bench_row(pp=pp, **more)
    content["workload"]["tg"] = tg
    return content


def pick(*rows):
    return {figure.name: figure.row.name for figure in pick_key_figures(parse_bench(bench(list(rows))))}


@pytest.mark.parametrize(
    ("lengths", "names"),
    [
        ([(512, 32), (512, 128), (2048, 128), (8192, 128)], {"pp2048": "pp2048 tg128", "tg32": "pp512 tg32"}),
        ([(128, 32), (512, 32)], {"pp512": "pp512 tg32", "tg32": "pp128 tg32"}),
        ([(4096, 256)], {"pp4096": "pp4096 tg256", "tg256": "pp4096 tg256"}),
    ],
)
def test_closest_lengths_are_picked(lengths, names):
    picked = pick(*(row(*length) for length in lengths))
    assert {name: picked[name] for name in names} == names
    assert picked["TTFT"] == next(name for key, name in names.items() if key.startswith("pp"))


def test_streams_context_and_cached_prompts_are_not_picked():
    cached = {**row(2048, 32), "phase": "prompt behind a cached context"}
    picked = pick(row(2048, 32, depth=4096), row(2048, 32, concurrency=4), cached, row(512, 32))
    assert set(picked.values()) == {"pp512 tg32"}


def test_benchmark_without_rows_has_no_key_figures():
    assert pick() == {}


def test_change_is_that_of_the_shared_figures():
    before, after = (
        pick_key_figures(parse_bench(bench([bench_row([speed, speed * 1.001, speed * 1.002])])))
        for speed in (100, 110)
    )
    changes = compare_key_figures({figure.name: figure.samples for figure in before[:2]}, after)
    assert set(changes) == {"pp512", "tg32"}
    assert changes["tg32"].change == pytest.approx(0.1) and changes["tg32"].verdict == "faster"
