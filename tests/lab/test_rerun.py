"""A result alone is enough to repeat its run."""

import itertools
import json
from pathlib import Path

import pytest

from firesteel.config import HIDDEN
from firesteel.errors import UserError
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.matrix.gates_file import choose_gates, read_gates_file
from firesteel.lab.matrix.matrix import CELLS, CLAIM
from firesteel.lab.matrix.result import SMALL, Configuration, Matrix, summarise
from firesteel.lab.rerun import WRITING_VERBS, Rerun, plan_rerun
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
        reference="r.json",
        quick=True,
        debug=True,
        ready_s=5.0,
        requests=30,
        concurrency=3,
        sequential=9,
        pp=(64, 128),
        tg=(8,),
        depths=(0,),
        streams=(1, 4),
        runs=2,
        warmups=0,
        temperature=0.5,
        formats="dense=q8_0",
    )
    words = plan({"order": spec.as_dict()}).words
    for pair in (
        ("--requests", "30"),
        ("--concurrency", "3"),
        ("--sequential", "9"),
        ("--pp", "64,128"),
        ("--warmups", "0"),
    ):
        assert pair in itertools.pairwise(words)
    shown = CliRunner().invoke(app, ["lab", "run", "--help-all"], env={"COLUMNS": "200"}).output
    assert all(word in shown for word in words if word.startswith("--") and word != "--")


def test_matrix_becomes_its_gates_and_configurations(tmp_path):
    best = Configuration(name="best", flags=("--a",), environment={"VLLM_A": "1,2"}, expect="moe=cutlass")
    gates = {"configuration": ("best",), "x": ('{"a": 1, "b": 2}', "without"), "env:VLLM_B": ("1,2", "it's")}
    matrix = Matrix(
        gates=gates,
        configurations=(best,),
        engine="vllm",
        model="m",
        flags=("--device", "cpu"),
        environment={"VLLM_C": '"'},
        expect="kv=fp8",
        formats="kv=fp8",
        keep_going=True,
        cell_s=5.0,
    )
    rerun = plan_rerun(parse_result({"matrix": summarise(matrix, []).as_dict()}), StatedSurroundings(), tmp_path)
    assert rerun.words[:4] == ("lab", "matrix", "--gates-file", str(tmp_path / "gates.toml"))
    for pair in (("--engine", "vllm"), ("--cell-s", "5.0"), ("--expect", "kv=fp8"), ("--formats", "kv=fp8")):
        assert pair in itertools.pairwise(rerun.words)
    assert "--keep-going" in rerun.words and "--full" not in rerun.words
    assert rerun.words[-3:] == ("--", "--device", "cpu")
    [(path, text)] = rerun.files.items()
    path.write_text(text)
    file = read_gates_file(path, engine="vllm")
    assert (file.configurations, file.environment) == ((best,), matrix.environment)
    assert choose_gates([], file, engine="vllm") == gates


@pytest.mark.parametrize(
    ("plan_of_cells", "quick", "words"),
    [
        (SMALL, True, ()),
        (
            SMALL.with_settings(pp=(2048,), depths=(0, 4096), runs=5),
            True,
            ("--pp", "2048", "--depths", "0,4096", "--runs", "5"),
        ),
        (BenchPlan(), False, ("--full",)),
        (BenchPlan(), True, ("--full",)),  # of an earlier version
        (BenchPlan().with_settings(tg=(64,)), False, ("--tg", "64", "--full")),
    ],
)
def test_workloads_of_a_matrix_are_those_of_its_rerun(plan_of_cells, quick, words):
    matrix = Matrix(gates={"sinks": ("on",)}, plan=plan_of_cells, quick=quick)
    found = plan({"matrix": summarise(matrix, []).as_dict()}).words
    assert found[found.index("--cell-s") + 2 : found.index("--out")] == words


def test_matrix_of_a_hidden_secret_is_not_rerun():
    best = Configuration(name="best", environment={"HF_TOKEN": "hf_1"})
    matrix = Matrix(gates={"configuration": ("best",)}, configurations=(best,))
    with pytest.raises(UserError, match="hides a secret"):
        plan({"matrix": summarise(matrix, []).as_dict()})


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


def rerun_of(environment, now=None):
    return plan({"surroundings": {"command": ["firesteel", "env"], "environment": environment}}, now)


def test_search_paths_are_restored_if_their_folders_exist(tmp_path, monkeypatch):
    """PYTHONPATH decides which fork of an engine runs."""
    monkeypatch.setenv("PYTHONPATH", "/mine")
    here, gone = f"{tmp_path}:", f"{tmp_path}:/no/such/folder"
    assert rerun_of({"PYTHONPATH": here, "LD_LIBRARY_PATH": str(tmp_path)}).environment == {
        "PYTHONPATH": here,
        "LD_LIBRARY_PATH": str(tmp_path),
    }
    now = StatedSurroundings(environment={"PYTHONPATH": "/mine"})
    rerun = rerun_of({"PYTHONPATH": gone}, now)
    assert rerun.environment == {} and "PYTHONPATH" not in rerun.without
    assert f"variable PYTHONPATH: {gone} before, /mine now" in rerun.differences


def test_restored_and_removed_variables_are_no_differences(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    now = StatedSurroundings(environment={"NCCL_DEBUG": "INFO", "ONEDNN_MAX_CPU_ISA": "AVX2"})
    rerun = rerun_of({"ONEDNN_MAX_CPU_ISA": "SSE41", "HF_HUB_OFFLINE": "1", "HF_HOME": "/there"}, now)
    assert rerun.environment == {"HF_HUB_OFFLINE": "1", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    assert "NCCL_DEBUG" in rerun.without
    assert rerun.differences == ["variable HF_HOME: /there before, not set now"]


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
    assert without == ["compare", "judge"]  # they write nothing


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


def test_command_is_written_as_typed_in_a_shell():
    plan = Rerun(words=("env",), environment={"A": "x y"}, without=("B", "C"), differences=[])
    assert plan.in_shell() == "env -u B -u C A='x y' firesteel env"
