"""A cell uses the settings of its matrix."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from firesteel.lab.matrix import cell as matrix_cell
from firesteel.lab.matrix.matrix import CellSpec
from firesteel.lab.matrix.result import CRASHED, SMALL, Matrix

FAKE = Path(__file__).parents[1] / "fake_server.py"


def cell_spec(**fields):
    return CellSpec(matrix=Matrix(gates={}, **fields), chosen={})


def test_debugging_and_limits_reach_the_server(monkeypatch, tmp_path):
    seen = []

    class Server:
        startup_s, processes, monitor = 1.0, SimpleNamespace(leader=1), SimpleNamespace(complaint=None)

        def check(self):
            pass

        def __init__(self, command, folder):
            seen.append(command)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    def measure(url, **given):
        seen.append(given)
        raise matrix_cell.UserError("enough")

    monkeypatch.setattr(matrix_cell, "SupervisedServer", Server)
    monkeypatch.setattr(matrix_cell, "measure", measure)
    matrix_cell.run_cell(cell_spec(debug=True, ready_s=5.0, answer_s=3.0, grace_s=2.0), tmp_path)
    command, given = seen
    assert "--enforce-eager" in command.words and command.environment["CUDA_LAUNCH_BLOCKING"] == "1"
    assert (command.ready_s, command.grace_s, given["timeout_s"]) == (5.0, 2.0, 3.0)


def test_server_that_is_never_ready_is_waited_for_as_long_as_set(tmp_path):
    engine = f"{sys.executable} {FAKE} {{port}} never-ready"
    outcome = matrix_cell.run_cell(cell_spec(engine=engine, plan=replace(SMALL, runs=1), ready_s=0.2), tmp_path)
    assert outcome.status == CRASHED and "never became ready" in outcome.reason


def test_server_that_dies_has_a_diagnosis_and_a_bundle(tmp_path):
    engine = f"{sys.executable} {FAKE} {{port}} dies-at-2"
    outcome = matrix_cell.run_cell(cell_spec(engine=engine, plan=replace(SMALL, runs=2), grace_s=2.0), tmp_path)
    assert outcome.status == CRASHED and "SIGKILL" in outcome.reason
    assert len(list((tmp_path / "crashes").glob("*/report.json"))) == 1
