"""A result alone says how it is made again."""

import itertools
import json
from pathlib import Path

import pytest

from firesteel.config import HIDDEN
from firesteel.errors import UserError
from firesteel.lab.matrix.matrix import CELLS, CLAIM, Matrix, summarise
from firesteel.lab.rerun import INTO_FOLDERS, plan_rerun
from firesteel.lab.spec import Order

OUT = Path("again")


def plan(result, now=None):
    return plan_rerun(json.loads(json.dumps(result)), now or {}, OUT)


def test_an_order_becomes_the_flags_of_lab_run():
    order = Order(mode="stress", model="m", quick=True, flags=("--kv-dtype", "fp8"), baseline="b.json")
    words = plan({"order": order.as_dict(), "levels": []}).words
    assert words == (
        "lab", "run", "--mode", "stress", "--model", "m", "--baseline", "b.json", "--quick", "--out", "again", "--",
        "--kv-dtype", "fp8",
    )  # fmt: skip


def test_every_field_of_an_order_is_carried():
    """A field that `lab run` learns must be learnt here too."""
    from typer.testing import CliRunner

    from firesteel.cli import app

    order = Order(level="3", engine="x {port}", model="m", path="p", trace="t", baseline="b", reference_url="r",
                  quick=True, debug=True, ready_s=5.0, requests=30, concurrency=3, sequential=9)  # fmt: skip
    words = plan({"order": order.as_dict()}).words
    for pair in (("--requests", "30"), ("--concurrency", "3"), ("--sequential", "9")):
        assert pair in itertools.pairwise(words)
    shown = CliRunner().invoke(app, ["lab", "run", "--help"], env={"COLUMNS": "200"}).output
    assert all(word in shown for word in words if word.startswith("--") and word != "--")


def test_a_matrix_becomes_its_gates():
    matrix = Matrix(gates={"kv_dtype": ("auto", "fp8"), "sinks": ("on",)}, model="m", flags=("--device", "cpu"))
    words = plan({"matrix": summarise(matrix, [])}).words
    assert words[:6] == ("lab", "matrix", "--gates", "kv_dtype=auto,fp8", "--gates", "sinks=on")
    assert words[-3:] == ("--", "--device", "cpu") and "--full" not in words


def test_a_record_becomes_its_command_and_settings(monkeypatch):
    monkeypatch.setenv("FIRESTEEL_SINKS", "false")
    surroundings = {
        "command": ["firesteel", "bench", "ops"],
        "environment": {"FIRESTEEL_DEVICE": "cpu", "CUDA": "1"},
    }
    found = plan({"surroundings": surroundings})
    assert found.words == ("bench", "ops", "--out", "again") and found.environment == {"FIRESTEEL_DEVICE": "cpu"}
    assert "FIRESTEEL_SINKS" in found.without


def test_other_engines_settings_are_made_again_and_those_of_the_machine_are_not(monkeypatch):
    monkeypatch.setenv("SGLANG_NEW", "1")
    monkeypatch.setenv("VLLM_CACHE_DIR", "/here")
    monkeypatch.setenv("LD_PRELOAD", "")
    environment = {
        "VLLM_USE_V1": "1", "OMP_NUM_THREADS": "4", "TRITON_CACHE_DIR": "/there", "CUDA_VISIBLE_DEVICES": "3",
        "VLLM_API_KEY": HIDDEN, "LD_PRELOAD": "/evil.so", "PATH": "/there",
    }  # fmt: skip
    found = plan({"surroundings": {"command": ["firesteel", "env"], "environment": environment}})
    assert found.environment == {"OMP_NUM_THREADS": "4", "VLLM_USE_V1": "1"}
    assert "SGLANG_NEW" in found.without and "VLLM_CACHE_DIR" not in found.without


def test_result_that_says_no_environment_takes_nothing_of_other_engines_away(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "OMP_NUM_THREADS" not in plan({"surroundings": {"command": ["firesteel", "env"]}}).without


@pytest.mark.parametrize("given", [("--out", "old"), ("--out=old",), ()])
def test_a_review_is_written_where_it_is_asked_for(given):
    """It went into the folder of the first, found its rounds there, and measured nothing."""
    words = ["firesteel", "lab", "review", "kv_dtype=auto,fp8", *given, "--rounds", "2", "--", "--out", "x"]
    assert plan({"review": {}, "surroundings": {"command": words}}).words == (
        "lab", "review", "kv_dtype=auto,fp8", "--rounds", "2", "--out", "again", "--", "--out", "x",
    )  # fmt: skip


def test_verbs_whose_folder_is_replaced_have_one():
    from typer.main import get_command

    from firesteel.cli import app

    def leaves(command, name):
        below = getattr(command, "commands", {})
        return [one for key, each in below.items() for one in leaves(each, key)] or [(name, command)]

    verbs = [pair for name in INTO_FOLDERS for pair in leaves(get_command(app).commands[name], name)]
    without = [name for name, verb in verbs if "--out" not in [flag for one in verb.params for flag in one.opts]]
    assert without == ["compare"]  # which leaves nothing to run again


def test_a_matrix_is_not_run_again_among_the_cells_of_another(tmp_path):
    """They would be taken for its own."""
    result = {"matrix": summarise(Matrix(gates={"sinks": ("on",)}), [])}
    assert plan_rerun(result, {}, tmp_path).words
    (tmp_path / CELLS).mkdir()
    (tmp_path / CELLS / CLAIM).write_text("{}")
    with pytest.raises(UserError, match="measured before"):
        plan_rerun(result, {}, tmp_path)


def test_what_differs_is_said():
    was = {"device": "NVIDIA H200", "versions": {"torch": "2.11"}, "command": ["firesteel", "env"]}
    found = plan({"surroundings": was}, {"device": "CPU", "versions": {"torch": "2.13"}})
    assert any("NVIDIA H200 before, CPU now" in line for line in found.differences)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({}, "cannot be run again"),
        ({"surroundings": {"command": ["pytest"]}}, "cannot be run again"),
        ({"surroundings": {"command": ["firesteel", "serve", "--api-key", HIDDEN]}}, "hides a secret"),
        ({"order": Order(engine="vllm serve --port {port} --api-key sk").as_dict()}, "hides a secret"),
        ({"order": {"nonsense": 1}}, "nonsense"),
    ],
)
def test_what_cannot_be_run_again_is_said(result, words):
    with pytest.raises(UserError, match=words):
        plan(result)
