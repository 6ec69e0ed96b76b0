"""The report's command repeats the run with its variables."""

from firesteel.config import HIDDEN
from firesteel.lab.report.command import make_command
from firesteel.lab.result import LabResult, parse_result
from firesteel.lab.spec import LabSpec


def command(**content):
    return make_command(parse_result({"levels": [], **content}))


def test_settings_and_variables_are_in_the_command():
    order = LabSpec(engine="vllm", quick=True, flags=("--max-num-seqs", "8")).as_dict()
    around = {"environment": {"VLLM_USE_V1": "1", "HF_HOME": "/models"}}
    words = "VLLM_USE_V1=1 firesteel lab run --engine vllm --quick --out firesteel-rerun -- --max-num-seqs 8"
    assert command(order=order, surroundings=around) == words


def test_gates_of_a_matrix_are_left_to_a_rerun_which_writes_their_file():
    matrix = {
        "gates": {"kv_dtype": ["auto", "fp8"]},
        "matrix": {"gates": {"kv_dtype": ["auto", "fp8"]}},
        "cells": [],
    }
    assert command(matrix=matrix) == "firesteel lab rerun result.json"


def test_secret_is_hidden():
    spec = LabSpec(engine="serve --port {port} --api-key hunter2", flags=("--api-key", "hunter2"))
    words = make_command(LabResult(spec=spec))
    assert "hunter2" not in words and words.count(HIDDEN) == 2


def test_result_without_settings_has_no_command():
    assert command() == ""
