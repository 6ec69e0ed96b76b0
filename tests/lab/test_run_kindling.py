"""Whole runs with the built-in model behind firesteel's own server."""

import json

import pytest

from firesteel.lab.run import run_lab
from firesteel.lab.spec import Order


class Silent:
    def begin(self, level):
        pass

    def tell(self, words):
        pass

    def end(self, result):
        pass


def take(folder, **fields):
    result = run_lab(Order(quick=True, ready_s=300.0, **fields), folder, Silent())
    return result, {level["level"]: level for level in result["levels"]}


@pytest.mark.slow
def test_every_level_passes_on_a_cpu_and_leaves_a_report(tmp_path):
    result, levels = take(tmp_path, flags=("--device", "cpu"))
    assert result["passed"], [level["reason"] for level in result["levels"]]
    assert list(levels) == ["1", "1.5", "2", "3", "4", "5", "6"]
    assert "Paris" in levels["1"]["figures"]["answer"] and levels["2"]["figures"]["tokens_equal"] == 192
    assert levels["3"]["figures"]["status_5xx"] == 0 and len(levels["4"]["figures"]["bench"]["rows"]) >= 5
    assert all(level["was_run"] for level in levels.values()) and "baseline of the next" in levels["5"]["reason"]
    assert len(levels["6"]["figures"]["matrix"]["cells"]) == 4
    assert {row["op"] for row in result["kernels"]} >= {"attention", "moe_matmul"}
    assert list((tmp_path / "records").glob("*.json"))
    page = (tmp_path / "report.html").read_text()
    assert "All 7 levels passed" in page and "moe_matmul" in page and "http://" not in page.split("<body")[0]


@pytest.mark.slow
def test_path_that_did_not_run_makes_the_benchmark_invalid(tmp_path):
    result, levels = take(tmp_path, level="4", path="triton", flags=("--device", "cpu"))
    assert not levels["1.5"]["passed"] and "triton did not run" in levels["1.5"]["reason"]
    assert levels["4"]["passed"] and not levels["4"]["valid"] and not result["passed"]


@pytest.mark.slow
def test_requirement_that_cannot_be_met_is_the_servers_last_word(tmp_path):
    _, levels = take(tmp_path, level="1.5", flags=("--device", "cpu", "--require", "moe=triton:gemm"))
    [gate] = levels.values()
    assert not gate["passed"] and gate["figures"]["diagnosis"]["kind"] == "exit"
    evidence = json.dumps(gate["figures"]["diagnosis"]["evidence"])
    assert "triton" in evidence and gate["figures"]["bundle"]


@pytest.mark.gpu
def test_kernel_path_on_a_gpu_is_agreed_by_ledger_and_profiler(tmp_path):
    result, levels = take(tmp_path, level="2")
    assert result["passed"], [level["reason"] for level in result["levels"]]
    checks = {row["check"]: row for row in levels["1.5"]["figures"]["checks"]}
    assert checks["profiler"]["passed"] and checks["kernels"]["passed"]
    assert set(levels["1.5"]["figures"]["backend"]["seen"]) <= {"triton", "cuda"}
