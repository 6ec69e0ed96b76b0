"""The verb `lab benchy`: sizes, table, and a program that is not there."""

import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.bench.benchy import BenchyUnavailable

SPEED = {"mean": 60.71, "std": 0.5}
ROW = {
    "context_size": 4096,
    "prompt_size": 2048,
    "response_size": 32,
    "pp_throughput": SPEED,
    "tg_throughput": None,
}
REPORT = {"model": "m", "version": "0.4.0", "benchmarks": [ROW]}


@pytest.fixture
def calls(monkeypatch):
    calls = []

    def measure(*arguments):
        calls.append(arguments)
        return REPORT

    monkeypatch.setattr("firesteel.lab.bench.benchy.run_benchy", measure)
    return calls


def test_sizes_and_flags_reach_the_run_and_the_table_shows_its_speeds(run, tmp_path, calls):
    sizes = ("--pp", "512,2048", "--tg", "32", "--depth", "0,4096", "--runs", "2", "--limit-s", "9")
    result = run("lab", "benchy", *sizes, "--out", str(tmp_path), "--", "--preset", "spark")
    [(plan, model, folder, flags)] = calls
    assert (plan.pp, plan.tg, plan.depths, plan.runs, plan.limit_s) == ((512, 2048), (32,), (0, 4096), 2, 9)
    assert (model, folder, list(flags)) == ("kindling", tmp_path, ["--preset", "spark"])
    assert result.exit_code == 0 and "4096" in result.output and "60.7 ± 0.5" in result.output


def test_json_is_its_report(run, tmp_path, calls):
    assert json.loads(run("lab", "benchy", "--json", "--out", str(tmp_path)).stdout) == REPORT


def test_wrong_sizes_are_refused(run, tmp_path, calls):
    result = run("lab", "benchy", "--pp", "0", "--out", str(tmp_path))
    assert isinstance(result.exception, UserError) and "--pp 0" in str(result.exception) and not calls


def test_missing_program_is_a_result_with_exit_code_3(run, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise BenchyUnavailable("not installed", "tail")

    monkeypatch.setattr("firesteel.lab.bench.benchy.run_benchy", refuse)
    result = run("lab", "benchy", "--json", "--out", str(tmp_path))
    assert result.exit_code == 3 and "not measured: not installed" in result.stderr
    assert json.loads(result.stdout) == {"not_measured": "not installed", "output": "tail"}
