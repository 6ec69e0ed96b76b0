"""Which run becomes the baseline, where its file is, and what it holds."""

import json

from firesteel.lab.levels.baseline import find_baseline, keep_baseline
from firesteel.lab.result import parse_result, read_result
from firesteel.lab.spec import LabSpec
from tests.lab import report_parts as parts


def test_different_settings_and_devices_have_different_baselines(tmp_path):
    specs = [
        LabSpec(),
        LabSpec(quick=True),
        LabSpec(flags=("--tile", "auto")),
        LabSpec(model="other"),
        LabSpec(engine="vllm"),
        LabSpec(expect="graphs=on"),
    ]
    paths = {find_baseline(spec, device, tmp_path) for spec in specs for device in ("CPU", "NVIDIA H200")}
    assert len(paths) == 12
    assert find_baseline(LabSpec(), "CPU", tmp_path) == find_baseline(LabSpec(mode="benchmark"), "CPU", tmp_path)


def test_baseline_of_an_earlier_version_is_found_again(tmp_path):
    """The name holds a hash of the settings, in an order that must not change."""
    assert find_baseline(LabSpec(), "CPU", tmp_path).name == "firesteel-kindling-full-416fae77.json"


def test_file_name_tells_engine_and_model(tmp_path):
    name = find_baseline(LabSpec(quick=True), "CPU", tmp_path).name
    assert name.startswith("firesteel-kindling-quick-")
    assert "/" not in find_baseline(LabSpec(url="http://host:1/v1"), "CPU", tmp_path).name


def test_baseline_can_be_read_and_holds_no_more_than_needed(tmp_path):
    levels = [parts.level("1"), parts.level("4", bench=parts.bench())]
    result = parse_result({"time_utc": "2026", "order": {}, "surroundings": {"device": "CPU"}, "levels": levels})
    path = tmp_path / "baselines" / "a.json"
    keep_baseline(result, path)
    assert set(json.loads(path.read_text())) == {"time_utc", "order", "surroundings", "bench"}
    kept = read_result(path)
    assert kept.counted_bench() == result.counted_bench() and kept.surroundings.device == "CPU"
