"""The top of a report: four figures with intervals, their change since the last run, and the slots."""

import pytest

from firesteel.lab.history import hash_settings
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, PLAIN
from firesteel.lab.report.highlights import make_badges, make_highlights
from firesteel.lab.result import LabResult, parse_result
from firesteel.lab.spec import LabSpec
from tests.lab import report_parts as parts
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import judge as judge_slots
from tests.lab.path.evidence_lines import vllm

SPEC = LabSpec()


def figures_of(bench, **more):
    level = parts.level("4", bench=bench, valid=more.pop("valid", True))
    content = {"order": SPEC.as_dict(), "surroundings": {"device": "NVIDIA H200"}, "levels": [level], **more}
    return {figure.name: figure for figure in make_highlights(parse_result(content))}


def past(tg_values, device="NVIDIA H200"):
    runs = {"unit": "tok/s", "is_higher_better": True, "median": tg_values[0], "runs": tg_values}
    time = "2026-11-17T10:00:00Z"
    return {"settings": hash_settings(SPEC, device), "time_utc": time, "figures": {"tg32": runs}}


def test_four_figures_of_one_stream_have_medians_and_intervals():
    found = figures_of(parts.bench())
    assert list(found) == ["pp2048", "tg32", "TTFT, pp2048", "Share of the roofline"]
    speed = found["tg32"]
    assert (speed.value, speed.unit, speed.note) == ("410", "tok/s", "3 runs of pp512 tg32")
    assert speed.interval == "95 %: 385.8 to 435.5"
    share = found["Share of the roofline"]
    assert (share.value, share.unit) == ("45.0", "%") and share.interval == "95 %: 42.3 % to 47.8 %"


def test_without_a_roofline_the_bandwidth_is_shown():
    found = figures_of(parts.bench([parts.bench_row(share=None)], device="CPU"))
    speed = found["Bandwidth, tg32"]
    assert (speed.value, speed.unit) == ("2,050", "GB/s") and "no roofline" in speed.note


def test_without_formats_the_peak_memory_is_shown():
    found = figures_of(parts.bench([{**parts.bench_row(), "shares": {}}]))
    assert found["Peak memory, the server's processes"].value == "2"


def test_change_since_the_last_run_with_these_settings_is_shown():
    remark = figures_of(parts.bench(), history=[past([600.0, 601.0]), past([300.0, 301.0, 302.0])])["tg32"].remark
    assert remark.text == "▲ +36.2 %, faster\nsince 2026-11-17" and remark.tone == GOOD
    slower = figures_of(parts.bench(), history=[past([600.0, 601.0, 602.0])])["tg32"].remark
    assert slower.text.startswith("▼ -31.8 %") and slower.tone == BAD


def test_run_on_another_device_is_no_earlier_run():
    assert figures_of(parts.bench(), history=[past([300.0, 301.0], device="CPU")])["tg32"].remark is None


def test_figures_of_a_wrong_path_do_not_count():
    found = figures_of(parts.bench(), valid=False)
    assert {figure.remark.text for figure in found.values()} == {"does not count"}


@pytest.mark.parametrize("content", [{"levels": []}, {"levels": [parts.level("1")]}])
def test_result_without_a_benchmark_has_no_figures(content):
    assert make_highlights(parse_result(content)) == []


def test_slots_are_green_amber_red_or_plain():
    table = judge_slots("vllm", log=vllm(lines.MARLIN, lines.FLASHINFER), expect="moe=cutlass,graphs=on")
    level = parts.level("1.5", "failed", slots=table.as_dict())
    badges = {badge.name: badge for badge in make_badges(LabResult(levels=parts.parsed_levels(level)))}
    tones = {name: badges[name].tone for name in ("moe", "attention", "graphs", "dense")}
    assert tones == {"moe": BAD, "attention": GOOD, "graphs": DOUBTFUL, "dense": PLAIN}
    assert (badges["moe"].value, badges["moe"].status) == ("marlin", "contradicted")
