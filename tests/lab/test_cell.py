"""The outcome of a cell: its rank needs a proven path, answers that are not wrong, and a benchmark."""

import sys
from pathlib import Path

from firesteel.lab import run
from firesteel.lab.cell import judge_cell, run_cell
from firesteel.lab.level import BENCHMARK, CORRECTNESS, KERNEL_PATH
from firesteel.lab.level_result import Checks, LevelCheck, LevelResult
from firesteel.lab.levels.coherence import COHERENCE
from firesteel.lab.matrix.cell import CellSpec
from firesteel.lab.matrix.result import CRASHED, DONE, NOT_MEASURED
from firesteel.lab.path.slots import SlotRow, make_table
from firesteel.lab.result import LabResult
from firesteel.lab.run import GATE_FAILED
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.servers.supervisor import ServerFailed
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab import report_parts as parts

FAKE = Path(__file__).parent / "fake_server.py"
SLOTS = make_table("vllm", "", [SlotRow(slot="moe")])
PASSED, FAILED, UNPROVEN = Verdict.PASSED, Verdict.FAILED, Verdict.UNPROVEN
BENCH = parts.bench([parts.bench_row([40.0])])


def judge(
    path=PASSED, answers=PASSED, speed=PASSED, *, coherent=PASSED, bench=BENCH, speed_reason="fast", **fields
):
    row = LevelCheck(check=COHERENCE, verdict=coherent, words="19 of 19")
    levels = [
        LevelResult(level=KERNEL_PATH, verdict=path, reason="the path", slots=SLOTS),
        LevelResult(level=CORRECTNESS, verdict=answers, reason="the answers", checks=(row,)),
        LevelResult(
            level=BENCHMARK,
            verdict=speed,
            reason=speed_reason,
            bench=None if bench is None else parts.parse_bench(bench),
            **fields,
        ),
    ]
    return judge_cell(LabResult(levels=tuple(levels), spec=LabSpec(level="2,4")))


def test_proven_cell_has_a_rank_figures_and_slots():
    outcome = judge()
    assert outcome.status == DONE and outcome.verdict is PASSED and not outcome.unranked and not outcome.reason
    assert outcome.figures["tg_tok_s"] == 40.0 and outcome.slots == SLOTS and outcome.bench is not None


def test_cell_whose_path_is_unproven_has_figures_and_no_rank():
    outcome = judge(path=UNPROVEN)
    assert outcome.status == DONE and outcome.figures and outcome.verdict is UNPROVEN
    assert outcome.unranked == outcome.reason == "kernel path not judged: the path"


def test_cell_whose_path_failed_is_not_measured_and_has_no_rank():
    outcome = judge(path=FAILED, answers=UNPROVEN, speed=UNPROVEN, bench=None, speed_reason=GATE_FAILED)
    assert outcome.status == NOT_MEASURED and not outcome.figures and outcome.verdict is FAILED
    assert outcome.unranked == "kernel path failed: the path" and outcome.slots == SLOTS


def test_cell_that_kept_going_on_a_wrong_path_has_figures_and_no_rank():
    outcome = judge(path=FAILED)
    assert outcome.status == DONE and outcome.figures and outcome.unranked == "kernel path failed: the path"


def test_cell_with_wrong_answers_has_no_rank():
    outcome = judge(answers=FAILED)
    assert outcome.status == DONE and outcome.figures and outcome.unranked == "correctness failed: the answers"


def test_coherent_cell_without_a_reference_has_a_rank_and_says_what_is_missing():
    outcome = judge(answers=UNPROVEN)
    assert not outcome.unranked and outcome.verdict is UNPROVEN
    assert outcome.reason == "correctness not judged: the answers"


def test_cell_whose_answers_nobody_could_judge_has_no_rank():
    outcome = judge(answers=UNPROVEN, coherent=UNPROVEN)
    assert outcome.figures and outcome.unranked == "correctness not judged: the answers"


def test_cell_that_talks_garbage_has_no_rank():
    """Its server is fast, and its kernel path is the wanted one."""
    checks = Checks(CORRECTNESS)
    checks.add(COHERENCE, Verdict.FAILED, "0 of 19 questions are answered")
    checks.add("reference", UNPROVEN, "none")
    path = LevelResult(level=KERNEL_PATH, verdict=PASSED, reason="the path", slots=SLOTS)
    speed = LevelResult(level=BENCHMARK, verdict=PASSED, reason="fast", bench=parts.parse_bench(BENCH))
    outcome = judge_cell(LabResult(levels=(path, checks.result(), speed), spec=LabSpec(level="2,4")))
    assert outcome.status == DONE and outcome.verdict is FAILED
    assert outcome.unranked == "correctness failed: coherence: 0 of 19 questions are answered"


def test_cell_with_failed_requests_counts_as_crashed():
    outcome = judge(speed=FAILED, speed_reason="two requests failed")
    assert outcome.status == CRASHED and not outcome.figures and outcome.bench is not None
    assert outcome.unranked == "benchmark failed: two requests failed"


def test_cell_whose_server_died_counts_as_crashed():
    diagnosis = Diagnosis(kind="signal", words="SIGKILL", cure="")
    outcome = judge(answers=PASSED, speed=FAILED, speed_reason="SIGKILL", diagnosis=diagnosis, bench=None)
    assert outcome.status == CRASHED and "SIGKILL" in outcome.reason


def run_fake(way, folder, **fields):
    spec = LabSpec(
        level="2,4", engine=f"{sys.executable} {FAKE} {{port}} {way}", model="none", quick=True, **fields
    )
    return run_cell(CellSpec(chosen={}, spec=spec, variables=()), folder)


def test_server_that_is_never_ready_is_waited_for_as_long_as_set(tmp_path):
    outcome = run_fake("never-ready", tmp_path, ready_s=0.2, grace_s=1.0)
    assert outcome.status == CRASHED and "never became ready" in outcome.reason and outcome.verdict is FAILED


def test_server_that_dies_has_a_diagnosis_and_a_bundle(tmp_path):
    outcome = run_fake("dies-at-2", tmp_path, grace_s=2.0)
    assert outcome.status == CRASHED and "SIGKILL" in outcome.reason and outcome.unranked == outcome.reason
    assert len(list((tmp_path / "crashes").glob("*/report.json"))) == 1


def test_settings_that_no_run_accepts_are_an_outcome(tmp_path):
    spec = LabSpec(level="2,4", engine="no port here")
    outcome = run_cell(CellSpec(chosen={}, spec=spec, variables=()), tmp_path)
    assert outcome.status == CRASHED and "{port}" in outcome.reason


def test_variables_of_a_cell_are_given_to_its_server_by_name(tmp_path, monkeypatch):
    """A container does not inherit the environment of the process that starts it."""
    seen = []

    class Server:
        def __init__(self, command, folder):
            seen.append(command.environment)
            raise ServerFailed(Diagnosis(kind="x", words="enough", cure=""), None)

    monkeypatch.setattr(run, "SupervisedServer", Server)
    monkeypatch.setenv("VLLM_X", "1")
    monkeypatch.setenv("VLLM_Y", "not named")
    spec = LabSpec(level="2,4", engine="vllm", model="none")
    outcome = run_cell(CellSpec(chosen={}, spec=spec, variables=("VLLM_X",)), tmp_path)
    assert outcome.status == CRASHED and "enough" in outcome.reason
    assert seen == [{"VLLM_X": "1", "FIRESTEEL_VLLM": "off"}]
