"""Results: when a level counts, what result.json holds, and files of earlier versions."""

import dataclasses
import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.level import BENCHMARK, CORRECTNESS, KERNEL_PATH, REGRESSION, SMOKE, STRESS
from firesteel.lab.level_result import Checks, LevelResult, judge_validity, parse_level
from firesteel.lab.result import LabResult, MemoryTimeline, parse_result, read_result
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.spec import LabSpec
from firesteel.lab.surroundings import StatedSurroundings
from firesteel.lab.verdict import Verdict
from firesteel.surroundings import Surroundings
from tests.lab import report_parts as parts

BENCH = {"rows": [{"workload": {"pp": 128, "tg": 32}, "series": {}}]}


PASSED, FAILED, UNPROVEN, NOT_APPLICABLE = Verdict


def result(level, verdict=PASSED):
    return LevelResult(level=level, verdict=verdict, reason="so")


def test_failed_kernel_path_makes_later_results_invalid_but_not_earlier_ones():
    judged = judge_validity([result(SMOKE), result(KERNEL_PATH, FAILED), result(CORRECTNESS), result(BENCHMARK)])
    assert [level.valid for level in judged] == [True, True, False, False]
    assert LabResult(levels=tuple(judged)).verdict is FAILED
    judged = judge_validity([result(SMOKE, FAILED), result(KERNEL_PATH), result(BENCHMARK)])
    assert all(level.valid for level in judged)


def test_kernel_path_that_was_not_judged_invalidates_nothing():
    judged = judge_validity([result(KERNEL_PATH, UNPROVEN), result(BENCHMARK)])
    assert [level.valid for level in judged] == [True, True]


def test_level_that_was_not_run_after_a_failed_kernel_path_is_not_called_invalid():
    judged = judge_validity([result(KERNEL_PATH, FAILED), result(BENCHMARK, UNPROVEN), result(STRESS)])
    assert [level.valid for level in judged] == [True, True, False]


@pytest.mark.parametrize(
    ("levels", "named", "verdict", "unjudged"),
    [
        ([result(SMOKE), result(KERNEL_PATH), result(CORRECTNESS)], "", PASSED, ()),
        ([result(SMOKE), result(CORRECTNESS, FAILED), result(KERNEL_PATH, UNPROVEN)], "", FAILED, (KERNEL_PATH,)),
        ([result(SMOKE), result(KERNEL_PATH, UNPROVEN)], "", UNPROVEN, (KERNEL_PATH,)),
        ([result(SMOKE), result(CORRECTNESS, UNPROVEN)], "", UNPROVEN, (CORRECTNESS,)),
        ([result(KERNEL_PATH), result(REGRESSION, UNPROVEN)], "", PASSED, ()),
        ([result(KERNEL_PATH), result(REGRESSION, UNPROVEN)], "5", UNPROVEN, (REGRESSION,)),
        ([result(KERNEL_PATH), result(REGRESSION, NOT_APPLICABLE)], "5", PASSED, ()),
        ([result(KERNEL_PATH, NOT_APPLICABLE), result(BENCHMARK)], "", PASSED, ()),
        ([result(STRESS, UNPROVEN)], "", UNPROVEN, ()),
        ([], "", UNPROVEN, ()),
    ],
    ids=str,
)
def test_run_is_proven_only_if_kernel_path_correctness_and_the_named_level_were_judged(
    levels, named, verdict, unjudged
):
    run = LabResult(levels=tuple(levels), spec=LabSpec(level=named))
    assert run.verdict is verdict and run.unjudged == unjudged
    assert run.as_dict()["verdict"] == verdict.value


def test_interrupted_run_is_unproven_unless_a_level_failed():
    assert LabResult(levels=(result(SMOKE),), unfinished=(BENCHMARK,)).verdict is UNPROVEN
    assert LabResult(levels=(result(SMOKE, FAILED),), unfinished=(BENCHMARK,)).verdict is FAILED


def test_reason_is_what_failed_or_else_the_summary_or_else_the_checks():
    checks = Checks(SMOKE)
    checks.add("answer", True, "answers Paris")
    checks.facts["seen"] = 3
    assert checks.result().reason == "answers Paris" and checks.result("all fine").reason == "all fine"
    checks.add("memory", False, "grew by 2000 MB")
    failed = checks.result("all fine")
    assert not failed.passed and failed.reason == "memory: grew by 2000 MB"
    assert failed.facts["seen"] == 3 and len(failed.checks) == 2


def test_check_that_saw_nothing_leaves_a_proof_unjudged_and_other_levels_passed():
    for level, verdict in ((SMOKE, PASSED), (KERNEL_PATH, UNPROVEN)):
        checks = Checks(level)
        checks.add("answer", True, "answers Paris")
        checks.add("memory", UNPROVEN, "not visible", cure="start it here")
        assert checks.result().verdict is verdict
    assert checks.result("all fine").reason == "not judged: not visible: start it here (answers Paris)"
    assert Checks(SMOKE).result().verdict is UNPROVEN


def test_level_is_the_same_after_json():
    checks = Checks(KERNEL_PATH)
    checks.add("moe", False, "marlin ran", cure="use cutlass")
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
    assert content["figures"]["checks"] == [
        {"check": "moe", "verdict": "failed", "words": "marlin ran", "cure": "use cutlass"}
    ]
    assert parse_level(content) == before


def test_result_of_an_earlier_version_is_read_and_written_again():
    order = {"engine": "vllm", "model": "m"}
    before = parts.result(order=order, time_utc="2026-11-15T12:00:00Z")
    content = json.loads(json.dumps(before.as_dict(), default=str))
    assert content["order"]["engine"] == "vllm" and content["schema"] == 2
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
        ([parts.level("4", "failed", bench=BENCH)], False),
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
    gate = parts.level("1.5", "failed", reason="kernels: marlin ran")
    levels = [gate, parts.level("4", valid=False, bench=BENCH)]
    order = {"engine": "vllm", "model": "gpt-oss-20b"}
    bad = parse_result({"levels": levels, "order": order, "time_utc": "2026-11-15T12:00:00Z"})
    with pytest.raises(UserError, match=r"vllm, gpt-oss-20b, 2026-11-15T12:00:00Z .* marlin ran; measure it again"):
        bad.counted_bench()


def test_benchmark_of_a_kernel_path_that_was_not_judged_counts():
    levels = [parts.level("1.5", "unproven"), parts.level("4", bench=BENCH)]
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
