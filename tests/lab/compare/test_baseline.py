"""Which run is kept, where, and what of it."""

import pytest

from firesteel.lab.compare.baseline import counts, find_place, keep
from firesteel.lab.report.report import read_result
from firesteel.lab.spec import Order

BENCH = {"rows": [{"name": "pp128 tg32", "series": {}}]}


def level(name, *, passed=True, valid=True, **figures):
    return {"level": name, "passed": passed, "valid": valid, "figures": figures}


def test_each_order_and_device_has_a_baseline_of_its_own(tmp_path):
    orders = [
        Order(),
        Order(quick=True),
        Order(flags=("--tile", "auto")),
        Order(model="other"),
        Order(engine="vllm"),
    ]
    places = {find_place(order, device, tmp_path) for order in orders for device in ("CPU", "NVIDIA H200")}
    assert len(places) == 10
    assert find_place(Order(), "CPU", tmp_path) == find_place(Order(mode="benchmark"), "CPU", tmp_path)


def test_name_of_the_file_says_whose_it_is(tmp_path):
    name = find_place(Order(quick=True), "CPU", tmp_path).name
    assert name.startswith("firesteel-kindling-quick-")
    assert "/" not in find_place(Order(url="http://host:1/v1"), "CPU", tmp_path).name


@pytest.mark.parametrize(
    ("levels", "is_counted"),
    [
        ([level("1.5"), level("4", bench=BENCH)], True),
        ([level("4", passed=False, bench=BENCH)], False),
        ([level("4", valid=False, bench=BENCH)], False),
        ([level("1")], False),
    ],
)
def test_only_a_benchmark_that_passed_on_the_right_path_counts(levels, is_counted):
    assert counts({"levels": levels}) == is_counted


def test_what_is_kept_can_be_read_and_compared(tmp_path):
    result = {"time_utc": "2026", "order": {}, "surroundings": {"device": "CPU"}, "kernels": ["much more"],
              "levels": [level("4", bench=BENCH)]}  # fmt: skip
    keep(result, tmp_path / "baselines" / "a.json")
    kept = read_result(tmp_path / "baselines" / "a.json")
    assert kept["bench"] == BENCH and "kernels" not in kept
