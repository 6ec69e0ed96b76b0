"""Whole runs with the built-in model behind firesteel's own server."""

import pytest

from firesteel.lab.verdict import Verdict
from tests.needed_packages import needs_packages

pytestmark = needs_packages("httpx2", "llguidance", "msgspec", "prometheus_client", "starlette", "uvicorn")


def run_kindling(folder, **fields):
    from firesteel.lab.run import run_lab
    from firesteel.lab.spec import LabSpec
    from tests.lab.observers import RecordingObserver

    result = run_lab(LabSpec(quick=True, ready_s=300.0, **fields), folder, RecordingObserver())
    return result, {level.level.number: level for level in result.levels}


@pytest.mark.slow
def test_every_level_passes_on_a_cpu_and_leaves_a_report(tmp_path):
    result, levels = run_kindling(tmp_path, flags=("--device", "cpu"))
    assert result.passed, [level.reason for level in result.levels]
    assert list(levels) == ["1", "1.5", "2", "3", "4", "5", "6"]
    assert "Paris" in levels["1"].facts["answer"] and levels["2"].facts["tokens_equal"] == 192
    assert levels["3"].facts["status_5xx"] == 0 and len(levels["4"].bench.rows) >= 5
    assert {name for name, level in levels.items() if not level.passed} == {"5"}
    assert levels["5"].verdict is Verdict.NOT_APPLICABLE and "first run" in levels["5"].reason
    assert len(levels["6"].matrix.cells) == 4
    assert {calls.op for calls in result.kernels} >= {"attention", "moe_matmul"}
    assert list((tmp_path / "records").glob("*.json"))
    page = (tmp_path / "report.html").read_text()
    assert (
        "All 6 levels that were judged passed" in page
        and "moe_matmul" in page
        and "http://" not in page.split("<body")[0]
    )


@pytest.mark.slow
def test_path_that_did_not_run_makes_the_benchmark_invalid(tmp_path):
    result, levels = run_kindling(tmp_path, level="4", path="triton", keep_going=True, flags=("--device", "cpu"))
    assert levels["1.5"].failed and "moe=reference; expected: triton or (cuda)" in levels["1.5"].reason
    assert levels["4"].passed and not levels["4"].valid and not result.passed


@pytest.mark.slow
def test_server_without_sinks_fails_the_kernel_path_and_is_not_measured(tmp_path):
    result, levels = run_kindling(tmp_path, level="4", flags=("--device", "cpu", "--no-sinks"))
    assert levels["1.5"].failed and "sinks=off; expected: on (ledger: sinks=off)" in levels["1.5"].reason
    assert levels["4"].bench is None and "not run" in levels["4"].reason and result.verdict is Verdict.FAILED


@pytest.mark.slow
def test_requirement_that_cannot_be_met_is_in_the_diagnosis(tmp_path):
    _, levels = run_kindling(tmp_path, level="1.5", flags=("--device", "cpu", "--require", "moe=triton:gemm"))
    [level] = levels.values()
    assert not level.passed and level.diagnosis.kind == "exit"
    assert any("triton" in line for line in level.diagnosis.evidence) and level.bundle


@pytest.mark.gpu
def test_ledger_and_profiler_agree_on_a_gpu(tmp_path):
    result, levels = run_kindling(tmp_path, level="2")
    assert result.passed, [level.reason for level in result.levels]
    checks = {row.check: row for row in levels["1.5"].checks}
    assert checks["profiler"].passed and checks["moe"].passed
    assert levels["1.5"].slots.verdict is Verdict.PASSED
