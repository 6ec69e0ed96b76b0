"""The report's command repeats the run with its variables, whatever folder it is read in."""

from firesteel.config import HIDDEN
from firesteel.lab.report.command import make_command
from firesteel.lab.result import parse_result
from firesteel.lab.spec import LabSpec


def command(**content):
    return make_command(parse_result({"levels": [], **content}))


def test_settings_and_variables_are_in_the_command():
    order = LabSpec(engine="vllm", quick=True, flags=("--max-num-seqs", "8")).as_dict()
    around = {"environment": {"VLLM_USE_V1": "1", "HF_HOME": "/models"}}
    words = "VLLM_USE_V1=1 firesteel lab run --engine vllm --quick --out firesteel-rerun -- --max-num-seqs 8"
    assert command(order=order, surroundings=around) == words


def test_cells_in_the_current_folder_do_not_matter(tmp_path, monkeypatch):
    (tmp_path / "firesteel-rerun" / "cells").mkdir(parents=True)
    (tmp_path / "firesteel-rerun" / "cells" / "matrix.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    matrix = {
        "gates": {"kv_dtype": ["auto", "fp8"]},
        "matrix": {"gates": {"kv_dtype": ["auto", "fp8"]}},
        "cells": [],
    }
    assert command(matrix=matrix).startswith("firesteel lab matrix --gates kv_dtype=auto,fp8")


def test_hidden_secret_stays_hidden():
    order = LabSpec(engine="vllm", flags=("--api-key", "abc")).as_dict()
    assert "abc" not in command(order=order) and HIDDEN in command(order=order)


def test_result_without_settings_has_no_command():
    assert command() == ""
