"""Level 6: the choice of gates, and the effect of a crashed cell."""

from firesteel.lab.levels import matrix as levels_matrix
from firesteel.lab.levels.matrix import choose_gates, run_matrix_level
from firesteel.lab.matrix.gates import parse_gates
from firesteel.lab.matrix.result import CellOutcome, Matrix, summarise
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab.contexts import make_context


def outcome(statuses):
    cells = [
        CellOutcome(gates={"a": str(number)}, status=status, reason="so") for number, status in enumerate(statuses)
    ]
    return summarise(Matrix(gates={}), cells)


def run(monkeypatch, tmp_path, statuses, **fields):
    seen = []

    def run_matrix(matrix, folder, on_progress):
        seen.append(matrix)
        return outcome(statuses)

    monkeypatch.setattr(levels_matrix, "run_matrix", run_matrix)
    return run_matrix_level(make_context(spec=LabSpec(**fields), folder=tmp_path)), seen


def test_quick_matrix_is_two_by_two_with_one_run_each(monkeypatch, tmp_path):
    result, [matrix] = run(monkeypatch, tmp_path, ["done"] * 4, quick=True, flags=("--tile", "auto"))
    assert (
        result.passed and len(matrix.cells()) == 4 and matrix.plan.runs == 1 and matrix.flags == ("--tile", "auto")
    )


def test_crashed_cell_fails_the_level_with_its_reason(monkeypatch, tmp_path):
    result, _ = run(monkeypatch, tmp_path, ["done", "crashed"])
    assert not result.passed and "a=1: so" in result.reason


def test_cells_of_an_earlier_run_are_removed(monkeypatch, tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "old.json").write_text("{}")
    run(monkeypatch, tmp_path, ["done"])
    assert not (tmp_path / "cells").exists()


def test_other_engines_need_named_gates(monkeypatch, tmp_path):
    result, seen = run(monkeypatch, tmp_path, ["done"], engine="vllm")
    assert result.verdict is Verdict.NOT_APPLICABLE and not seen
    result, [matrix] = run(monkeypatch, tmp_path, ["done"] * 2, engine="vllm", gates=("enforce_eager",))
    assert result.passed and matrix.cells() == [{"enforce_eager": "on"}, {"enforce_eager": "off"}]


def test_server_that_was_running_already_has_no_cells(monkeypatch, tmp_path):
    result, seen = run(monkeypatch, tmp_path, ["done"], url="http://x:1")
    assert (
        result.verdict is Verdict.NOT_APPLICABLE and not seen and "http://x:1 is running already" in result.reason
    )


def test_cells_get_the_requested_limits_and_debugging(monkeypatch, tmp_path):
    given = {"debug": True, "ready_s": 7200.0, "answer_s": 5.0, "grace_s": 1.0}
    _, [matrix] = run(monkeypatch, tmp_path, ["done"], **given)
    assert {name: getattr(matrix, name) for name in given} == given
    assert matrix.cell_s > 7200.0  # its server may take that long to start


def test_every_default_gate_exists():
    for spec in (LabSpec(), LabSpec(quick=True)):
        for on_gpu in (False, True):
            assert parse_gates(choose_gates(spec, on_gpu=on_gpu))
