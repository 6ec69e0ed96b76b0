"""Results: when a level counts, what result.json holds, and files of earlier versions."""

import dataclasses
import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.level import BENCHMARK, CORRECTNESS, KERNEL_PATH, SMOKE
from firesteel.lab.level_result import Checks, LevelResult, has_passed, judge_validity, parse_level
from firesteel.lab.result import MemoryTimeline, parse_result, read_result
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.surroundings import StatedSurroundings
from firesteel.surroundings import Surroundings
from tests.lab import report_parts as parts

BENCH = {"rows": [{"workload": {"pp": 128, "tg": 32}, "series": {}}]}


def result(level, *, passed=True, was_run=True):
    return LevelResult(level=level, passed=passed, reason="so", was_run=was_run)


def test_failed_kernel_path_makes_later_results_invalid_but_not_earlier_ones():
    judged = judge_validity(
        [result(SMOKE), result(KERNEL_PATH, passed=False), result(CORRECTNESS), result(BENCHMARK)]
    )
    assert [level.valid for level in judged] == [True, True, False, False]
    assert not has_passed(judged)
    judged = judge_validity([result(SMOKE, passed=False), result(KERNEL_PATH), result(BENCHMARK)])
    assert all(level.valid for level in judged)


def test_kernel_path_that_was_not_judged_invalidates_nothing():
    judged = judge_validity([result(KERNEL_PATH, was_run=False), result(BENCHMARK)])
    assert [level.valid for level in judged] == [True, True] and has_passed(judged)


def test_valid_results_that_failed_do_not_pass():
    assert not has_passed([result(SMOKE), result(CORRECTNESS, passed=False)])


def test_reason_is_what_failed_or_else_the_summary_or_else_the_checks():
    checks = Checks(SMOKE)
    checks.add("answer", True, "answers Paris")
    checks.facts["seen"] = 3
    assert checks.result().reason == "answers Paris" and checks.result("all fine").reason == "all fine"
    checks.add("memory", False, "grew by 2000 MB")
    failed = checks.result("all fine")
    assert not failed.passed and failed.reason == "memory: grew by 2000 MB"
    assert failed.facts["seen"] == 3 and len(failed.checks) == 2


def test_level_is_the_same_after_json():
    checks = Checks(KERNEL_PATH)
    checks.add("kernels", False, "marlin ran")
    checks.facts["packages"] = {"torch": "/a"}
    before = dataclasses.replace(
        checks.result(bench=parts.parse_bench(parts.bench())),
        valid=False,
        seconds=2.0,
        diagnosis=Diagnosis(kind="exit", words="ended"),
        bundle="/crashes/1",
    )
    content = json.loads(json.dumps(before.as_dict()))
    assert content["title"] == "kernel path" and content["figures"]["packages"] == {"torch": "/a"}
    assert content["figures"]["checks"] == [{"check": "kernels", "passed": False, "words": "marlin ran"}]
    assert parse_level(content) == before


def test_result_of_an_earlier_version_is_read_and_written_again():
    order = {"engine": "vllm", "model": "m"}
    before = parts.result(order=order, time_utc="2026-11-15T12:00:00Z", passed=True)
    content = json.loads(json.dumps(before.as_dict(), default=str))
    assert content["order"]["engine"] == "vllm" and content["schema"] == 1
    assert parse_result(content) == before


def test_file_is_read_from_its_folder(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(parts.content()))
    assert read_result(tmp_path).engine.name == "firesteel"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "give a result.json or its folder"),
        ("{", "not valid JSON"),
        ("[]", "not a result of the lab"),
        ('{"levels": [{"level": "9"}]}', "there is no level '9': the levels are 1, 1.5"),
        ('{"bench": {"rows": [{"workload": {"pp": "many"}}]}}', r"bench of the result cannot be read: .*\$\.rows"),
    ],
)
def test_file_that_cannot_be_read_is_refused_by_name(text, words, tmp_path):
    path = tmp_path / "some.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        read_result(path)
    assert str(path) in str(caught.value)


def test_record_has_surroundings_and_its_own_table_of_kernels():
    record = {"name": "decode", "samples": [1.0], "kernels": {"linear": "cuda"}, "surroundings": {"device": "CPU"}}
    assert parse_result(record).surroundings.device == "CPU"


@pytest.mark.parametrize(
    ("levels", "is_counted"),
    [
        ([parts.level("1.5"), parts.level("4", bench=BENCH)], True),
        ([parts.level("4", passed=False, bench=BENCH)], False),
        ([parts.level("4", valid=False, bench=BENCH)], False),
        ([parts.level("1")], False),
    ],
)
def test_only_a_benchmark_that_passed_on_the_requested_path_counts(levels, is_counted):
    assert parse_result({"levels": levels}).has_counted_bench == is_counted


def test_result_without_a_benchmark_says_how_to_measure_one():
    with pytest.raises(UserError, match="holds no benchmark: run level 4"):
        parse_result({"levels": [parts.level("1")]}).counted_bench()


def test_benchmark_of_a_failed_kernel_path_is_refused_with_its_name_and_reason():
    gate = parts.level("1.5", passed=False, reason="kernels: marlin ran")
    levels = [gate, parts.level("4", valid=False, bench=BENCH)]
    order = {"engine": "vllm", "model": "gpt-oss-20b"}
    bad = parse_result({"levels": levels, "order": order, "time_utc": "2026-11-15T12:00:00Z"})
    with pytest.raises(UserError, match=r"vllm, gpt-oss-20b, 2026-11-15T12:00:00Z .* marlin ran; measure it again"):
        bad.counted_bench()


def test_benchmark_of_a_kernel_path_that_was_not_judged_counts():
    levels = [parts.level("1.5", was_run=False), parts.level("4", bench=BENCH)]
    assert len(parse_result({"levels": levels}).counted_bench().rows) == 1


def test_benchmark_alone_is_a_result():
    assert len(parse_result(parts.bench()).counted_bench().rows) == 4


def test_stated_surroundings_have_the_fields_of_the_measured_ones():
    names = [[field.name for field in dataclasses.fields(kind)] for kind in (StatedSurroundings, Surroundings)]
    assert names[0] == names[1]


def test_memory_samples_become_columns():
    timeline = MemoryTimeline.of([(0.001, 5, None), (1.0, 7, 2)])
    assert (timeline.seconds, timeline.host_bytes, timeline.gpu_bytes) == ((0.0, 1.0), (5, 7), (None, 2))
    assert MemoryTimeline.of([]) == MemoryTimeline()
