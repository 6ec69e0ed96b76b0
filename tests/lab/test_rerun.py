"""A result alone is enough to repeat its run."""

import itertools
import json
from pathlib import Path

import pytest

from firesteel.config import HIDDEN
from firesteel.errors import UserError
from firesteel.lab.matrix.matrix import CELLS, CLAIM
from firesteel.lab.matrix.result import Matrix, summarise
from firesteel.lab.rerun import WRITING_VERBS, plan_rerun
from firesteel.lab.result import LabResult, parse_result
from firesteel.lab.spec import LabSpec
from firesteel.lab.surroundings import StatedSurroundings

OUT = Path("again")


def plan(result, now=None):
    return plan_rerun(parse_result(json.loads(json.dumps(result))), now or StatedSurroundings(), OUT)


def test_settings_become_the_flags_of_lab_run():
    spec = LabSpec(mode="stress", model="m", quick=True, flags=("--kv-dtype", "fp8"), baseline="b.json")
    words = plan({"order": spec.as_dict(), "levels": []}).words
    assert words == (
        "lab",
        "run",
        "--mode",
        "stress",
        "--model",
        "m",
        "--baseline",
        "b.json",
        "--quick",
        "--out",
        "again",
        "--",
        "--kv-dtype",
        "fp8",
    )


def test_every_setting_is_a_flag_of_lab_run():
    from typer.testing import CliRunner

    from firesteel.cli import app

    spec = LabSpec(
        level="3",
        engine="x {port}",
        model="m",
        path="p",
        trace="t",
        baseline="b",
        reference_url="r",
        quick=True,
        debug=True,
        ready_s=5.0,
        requests=30,
        concurrency=3,
        sequential=9,
    )
    words = plan({"order": spec.as_dict()}).words
    for pair in (("--requests", "30"), ("--concurrency", "3"), ("--sequential", "9")):
        assert pair in itertools.pairwise(words)
    shown = CliRunner().invoke(app, ["lab", "run", "--help-all"], env={"COLUMNS": "200"}).output
    assert all(word in shown for word in words if word.startswith("--") and word != "--")


def test_matrix_becomes_its_gates():
    matrix = Matrix(gates={"kv_dtype": ("auto", "fp8"), "sinks": ("on",)}, model="m", flags=("--device", "cpu"))
    words = plan({"matrix": summarise(matrix, []).as_dict()}).words
    assert words[:6] == ("lab", "matrix", "--gates", "kv_dtype=auto,fp8", "--gates", "sinks=on")
    assert words[-3:] == ("--", "--device", "cpu") and "--full" not in words


def test_record_becomes_its_command_and_settings(monkeypatch):
    monkeypatch.setenv("FIRESTEEL_SINKS", "false")
    surroundings = {
        "command": ["firesteel", "bench", "ops"],
        "environment": {"FIRESTEEL_DEVICE": "cpu", "CUDA": "1"},
    }
    rerun = plan({"surroundings": surroundings})
    assert rerun.words == ("bench", "ops", "--out", "again") and rerun.environment == {"FIRESTEEL_DEVICE": "cpu"}
    assert "FIRESTEEL_SINKS" in rerun.without


def test_settings_of_other_engines_are_restored_and_places_are_not(monkeypatch):
    monkeypatch.setenv("SGLANG_NEW", "1")
    monkeypatch.setenv("VLLM_CACHE_DIR", "/here")
    monkeypatch.setenv("LD_PRELOAD", "")
    environment = {
        "VLLM_USE_V1": "1",
        "OMP_NUM_THREADS": "4",
        "TRITON_CACHE_DIR": "/there",
        "CUDA_VISIBLE_DEVICES": "3",
        "VLLM_API_KEY": HIDDEN,
        "LD_PRELOAD": "/evil.so",
        "PATH": "/there",
    }
    rerun = plan({"surroundings": {"command": ["firesteel", "env"], "environment": environment}})
    assert rerun.environment == {"OMP_NUM_THREADS": "4", "VLLM_USE_V1": "1"}
    assert "SGLANG_NEW" in rerun.without and "VLLM_CACHE_DIR" not in rerun.without


def test_result_without_an_environment_removes_no_variables_of_other_engines(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "OMP_NUM_THREADS" not in plan({"surroundings": {"command": ["firesteel", "env"]}}).without


@pytest.mark.parametrize("given", [("--out", "old"), ("--out=old",), ()])
def test_review_is_written_to_the_given_folder(given):
    """It was written to the folder of the first, found its rounds there, and measured nothing."""
    words = ["firesteel", "lab", "review", "kv_dtype=auto,fp8", *given, "--rounds", "2", "--", "--out", "x"]
    assert plan({"review": {}, "surroundings": {"command": words}}).words == (
        "lab",
        "review",
        "kv_dtype=auto,fp8",
        "--rounds",
        "2",
        "--out",
        "again",
        "--",
        "--out",
        "x",
    )


def test_writing_verbs_have_an_out_folder():
    from typer.main import get_command

    from firesteel.cli import app

    def leaves(command, name):
        below = getattr(command, "commands", {})
        return [leaf for key, each in below.items() for leaf in leaves(each, key)] or [(name, command)]

    verbs = [pair for name in WRITING_VERBS for pair in leaves(get_command(app).commands[name], name)]
    without = [
        name
        for name, verb in verbs
        if "--out" not in [flag for parameter in verb.params for flag in parameter.opts]
    ]
    assert without == ["compare"]  # it writes nothing


def test_matrix_is_not_rerun_among_measured_cells(tmp_path):
    """They would be taken for new ones."""
    result = LabResult(matrix=summarise(Matrix(gates={"sinks": ("on",)}), []))
    assert plan_rerun(result, StatedSurroundings(), tmp_path).words
    (tmp_path / CELLS).mkdir()
    (tmp_path / CELLS / CLAIM).write_text("{}")
    with pytest.raises(UserError, match="measured before"):
        plan_rerun(result, StatedSurroundings(), tmp_path)


def test_differences_are_listed():
    was = {"device": "NVIDIA H200", "versions": {"torch": "2.11"}, "command": ["firesteel", "env"]}
    rerun = plan({"surroundings": was}, StatedSurroundings(device="CPU", versions={"torch": "2.13"}))
    assert any("NVIDIA H200 before, CPU now" in line for line in rerun.differences)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({}, "cannot be rerun"),
        ({"surroundings": {"command": ["pytest"]}}, "cannot be rerun"),
        ({"surroundings": {"command": ["firesteel", "serve", "--api-key", HIDDEN]}}, "hides a secret"),
        ({"order": LabSpec(engine="vllm serve --port {port} --api-key sk").as_dict()}, "hides a secret"),
        ({"order": {"nonsense": 1}}, "nonsense"),
    ],
)
def test_result_that_cannot_be_rerun_is_refused(result, words):
    with pytest.raises(UserError, match=words):
        plan(result)
