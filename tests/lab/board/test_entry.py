"""What a board takes from a result, and whether the run counts."""

import pytest

from firesteel.lab.board.entry import make_entry
from firesteel.lab.board.tables import show_answers
from firesteel.lab.result import parse_result
from firesteel.lab.standing import COHERENT_ONLY
from firesteel.lab.verdict import Verdict
from tests.lab import report_parts as parts
from tests.lab.board_results import FAST_SLOTS, bench_of, content_of, proven, slots_of


def entry(*arguments, **fields):
    return make_entry("a/result.json", parse_result(content_of(*arguments, **fields)))


def test_figures_are_those_of_the_headline_and_its_depths():
    found = entry(50.0)
    assert (found.workload, found.model, found.device) == ("pp2048 tg32", "gpt-oss-120b", "NVIDIA GB10")
    assert found.headline["tg_tok_s"].value == 50.0 and found.share == 0.5
    assert {depth: figure.value for depth, figure in found.by_depth.items()} == {0: 50.0, 4096: 45.0, 32768: 25.0}
    speed = found.headline["tg_tok_s"]
    assert 49.7 < speed.low < 50.0 < speed.high < 50.3 and speed.runs == 5
    assert found.is_ranked and found.coherent is Verdict.PASSED


def test_single_run_has_no_interval():
    assert entry(50.0, runs=1).headline["tg_tok_s"].low is None


MARLIN = parts.level("1.5", "failed", reason="moe: marlin ran", slots=slots_of({"moe": "marlin"}, "contradicted"))
UNSEEN = parts.level("1.5", "unproven", reason="not judged: moe was not seen")
BENCH = parts.level("4", bench=bench_of(50.0))
COHERENT = parts.level("2", "unproven", checks=[{"check": "coherence", "verdict": "passed", "words": "19 of 19"}])
SMOKE, SEEN, *REST = proven(bench_of(50.0))


@pytest.mark.parametrize(
    ("levels", "verdict", "words"),
    [
        ([MARLIN, {**BENCH, "valid": False}], Verdict.FAILED, "kernel path failed: moe: marlin ran"),
        ([MARLIN, parts.level("4", "unproven", reason="not run")], Verdict.FAILED, "moe: marlin ran"),
        ([UNSEEN, BENCH], Verdict.UNPROVEN, "kernel path not judged: moe was not seen"),
        ([BENCH], Verdict.UNPROVEN, "level 1.5 was not run"),
        (
            [SMOKE, SEEN, parts.level("2", "failed", reason="garbage"), BENCH],
            Verdict.FAILED,
            "garb",
        ),
        ([SMOKE, SEEN, parts.level("2", "unproven"), BENCH], Verdict.UNPROVEN, "correctness not"),
        (
            [parts.level("1", "failed", reason="no answer"), SEEN, *REST],
            Verdict.FAILED,
            "no answer",
        ),
        ([SMOKE, SEEN, COHERENT, BENCH], Verdict.PASSED, ""),
        ([SMOKE, SEEN, *REST, parts.level("3", "failed", reason="5xx")], Verdict.FAILED, "stress failed: 5xx"),
        ([SMOKE, SEEN, *REST, parts.level("5", "failed", reason="slower")], Verdict.PASSED, ""),
        ([SMOKE, SEEN, BENCH], Verdict.PASSED, ""),
    ],
)
def test_run_is_ranked_if_its_path_is_proven_and_nothing_that_judges_the_server_failed(levels, verdict, words):
    found = entry(levels=levels)
    assert found.verdict is verdict and words in found.fault and bool(words) != found.is_ranked


def test_run_without_a_reference_is_ranked_with_a_doubt():
    """The cells of a matrix without a reference had ranks there, and none on the board."""
    found = entry(levels=[SMOKE, SEEN, COHERENT, BENCH])
    assert COHERENT_ONLY in found.doubts and COHERENT_ONLY not in entry(50.0).doubts
    assert show_answers(found).note == "no reference" and show_answers(entry(50.0)).note == ""


def test_answers_are_those_of_the_coherence_check_and_of_level_2():
    levels = proven(bench_of(50.0))
    assert entry(levels=[levels[1], levels[3]]).coherent is None
    check = {"check": "coherence", "verdict": "failed", "words": "repeats"}
    assert entry(levels=[parts.level("1", checks=[check]), *levels[1:]]).coherent is Verdict.FAILED


def test_settings_are_the_flags_and_a_command_or_address_that_the_engine_does_not_say():
    assert entry(flags=("--a", "b")).settings == ("--a", "b")
    content = content_of()
    content["order"]["engine"] = "env A=1 vllm serve --port {port} --api-key sk-1"
    assert make_entry("x", parse_result(content)).settings == (
        "env A=1 vllm serve --port {port} --api-key (hidden)",
    )
    content["order"]["url"] = "http://h:1"
    content["engine"]["kind"] = "other"
    found = make_entry("x", parse_result(content))
    assert (found.engine, found.settings) == ("http://h:1", ())


def test_variables_that_name_places_of_a_machine_are_left_out():
    found = entry(environment={"VLLM_MXFP4_MOE_KERNEL": "gemm", "HF_HOME": "/x", "CUDA_VISIBLE_DEVICES": "0"})
    assert found.environment == {"VLLM_MXFP4_MOE_KERNEL": "gemm"}


def test_results_of_other_verbs_and_runs_without_level_4_are_no_entries():
    assert make_entry("x", parse_result({"matrix": parts.matrix(), "levels": []})) is None
    assert entry(levels=[parts.level("1"), parts.level("1.5", slots=slots_of(FAST_SLOTS))]) is None
